"""What must hold before an update uses samples: engine and trainer agree, and gradients are finite."""
