"""What each token of a step's samples is worth: advantages, from rewards, a reference, a critic or a teacher."""
