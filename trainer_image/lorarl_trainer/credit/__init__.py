"""From rewards to what each token's gradient is weighted with: references, values, advantages."""
