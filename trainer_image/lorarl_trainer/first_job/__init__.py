"""`lorarl init`: a first job from a model and data, sized for this machine."""
