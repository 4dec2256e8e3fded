"""Digits and their fixed features, which learn nothing: public functions of one image alone.

An image is moved to its centre of mass and sheared upright; then its edges in eight directions, and the
edges of those maps in four, are summed under smooth windows. 680 numbers of norm 1.
"""

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def read(path: Path) -> Any:
    """A gzipped idx file of bytes."""
    raw = gzip.decompress(path.read_bytes())
    sizes = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(sizes)


def upright(images: Tensor) -> Tensor:
    """Each image moved to its centre of mass and sheared until its main axis stands."""
    at, mass = torch.arange(28.0) - 13.5, images.sum((1, 2)).clamp(min=1e-6)
    x, y = images.sum(1) @ at / mass, images.sum(2) @ at / mass
    across, down = at - x[:, None], at - y[:, None]
    height = (images.sum(2) * down**2).sum(1).clamp(min=1e-6)
    shear = (torch.einsum("nij,ni,nj->n", images, down, across) / height).clamp(-1, 1)
    maps = torch.eye(2, 3).repeat(len(images), 1, 1)
    maps[:, 0, 1], maps[:, 0, 2], maps[:, 1, 2] = shear, x / 14, y / 14
    return warped(images[:, None], maps)


def warped(images: Tensor, maps: Tensor) -> Tensor:
    grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def edges(maps: Tensor, angles: int) -> Tensor:
    """How steeply each map rises in each direction: so many times as many maps."""
    padded = functional.pad(maps, (1, 1, 1, 1))[:, :, None]
    right = padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]
    down = padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]
    turn = (2 * math.pi * torch.arange(angles) / angles)[:, None, None]
    return torch.relu(right * turn.cos() + down * turn.sin()).flatten(1, 2)


def pooled(maps: Tensor, size: int) -> Tensor:
    """Roots of sums under smooth windows, four pixels apart: a vector of norm 1."""
    window = torch.hann_window(size + 2, periodic=False)[1:-1]
    kernel = torch.outer(window, window).expand(maps.shape[1], 1, size, size)
    sums = functional.conv2d(maps, kernel, stride=4, padding=size // 2 - 2, groups=maps.shape[1])
    return functional.normalize(sums.clamp(min=0).sqrt().flatten(1))


def features(images: Tensor) -> Any:
    """Edges, and edges of the maps of edges: a public function of one image alone."""
    found = []
    for part in images.split(500):
        first = edges(upright(part), 8)
        second = edges(functional.avg_pool2d(first, 2), 4)
        found.append(torch.cat([pooled(first, 8), pooled(second, 6)], 1) / math.sqrt(2))
    return torch.cat(found).numpy()
