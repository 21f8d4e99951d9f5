"""Makes digits.safetensors from the handwritten digits that scikit-learn ships.

    pip install scikit-learn safetensors
    python3 make_digits.py digits.safetensors

`images` is u8[1797, 8, 8] with values from 0 to 16, `labels` is i32[1797].
"""

import sys

import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_digits


def main(target):
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    assert (images == digits.images).all() and images.max() == 16
    save_file({"images": images, "labels": digits.target.astype(np.int32)}, target)


if __name__ == "__main__":
    main(sys.argv[1])
