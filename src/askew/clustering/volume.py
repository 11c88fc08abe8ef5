"""Log-determinant of the Hessian of a potential, the volume element of the mixture density."""

from __future__ import annotations

import torch
from torch import Tensor

from askew import checks
from askew.potentials import Potential

# Numbers in a block of Hessians.
BLOCK_ELEMENTS = 1 << 20
# Points whose Hessians tell in which directions a potential is curved.
CURVATURE_POINTS = 16


@torch.no_grad()
def curved_directions(points: Tensor, potential: Potential) -> Tensor:
    """Return an orthonormal basis of the directions in which phi is curved, ``(dim, d)``: the dimensions of a density.

    These are all directions in most cases. Left out are the one out of the simplex, and those in which phi is affine
    everywhere, as log-sum-exp is along (1, ..., 1) or a Mahalanobis distance of low rank along the kernel of its
    matrix.

    Examples
    --------
    >>> from askew.potentials import LogSumExp
    >>> curved_directions(torch.randn(10, 3), LogSumExp(3)).shape
    torch.Size([3, 2])
    """
    dim = points.shape[1]
    basis = torch.eye(dim, dtype=torch.float64, device=points.device)
    if potential.domain.sums_to_one:
        basis = torch.linalg.qr(torch.cat([torch.ones_like(basis[:, :1]), basis[:, 1:]], 1))[0][:, 1:]
    if potential.compute_curvatures(points[:1]) is not None:
        return basis
    # Half-way to the mean no point lies on the boundary, where Hessians may be infinite.
    chosen = points[:: -(-points.shape[0] // CURVATURE_POINTS)]
    chosen = (chosen + points.mean(0)) / 2
    mean = basis.new_zeros(basis.shape[1], basis.shape[1])
    for point in chosen.split(1):
        hessian = potential.compute_hessian(point)[0].double()
        if bool(torch.isfinite(hessian).all()):
            mean += basis.mT @ hessian @ basis / chosen.shape[0]
    curvatures, vectors = torch.linalg.eigh(mean)
    curved = curvatures > dim * torch.finfo(points.dtype).eps * curvatures.amax()
    return basis if bool(curved.all()) else basis @ vectors[:, curved]


@torch.no_grad()
def log_volumes(points: Tensor, potential: Potential, directions: Tensor) -> Tensor:
    r"""Return half the log-determinant of the Hessian of phi along some directions, ``(n, dim) -> (n,)``.

    .. math:: \tfrac12 \log |Q^T \nabla^2 \phi(x) Q|

    It depends on the point alone, not on the components, and takes ``dim`` squared numbers per point, in blocks.

    Examples
    --------
    >>> from askew.potentials import Burg
    >>> log_volumes(torch.tensor([[0.5, 0.5]]), Burg(2), torch.eye(2)).exp()  # 1 / (x_1 x_2)
    tensor([4.], dtype=torch.float64)
    """
    inside = potential.contains(points)
    if not bool(inside.all()):
        first = int((~inside).nonzero()[0])
        must = f"inside the {potential.domain} domain, not on its boundary, where a density is infinite"
        hint = "Move such points inside, or leave volumes out: score(X, volume=False)."
        raise ValueError(checks.message("points of a density", must, f"row {first} = {points[first].tolist()}", hint))
    curvatures = potential.compute_curvatures(points.double())
    if curvatures is not None:
        # On the simplex, the determinant along it is that of all directions times 1' H^-1 1 / dim.
        along = curvatures.reciprocal().mean(1).log() if potential.domain.sums_to_one else 0.0
        return (curvatures.log().sum(1) + along) / 2
    basis = directions.to(points.device, torch.float64)
    # The Hessian of a quadratic is the same everywhere.
    chosen = points[:1] if potential.symmetric else points
    volumes = []
    for block in chosen.split(max(1, BLOCK_ELEMENTS // points.shape[1] ** 2)):
        hessian = potential.compute_hessian(block).double()
        volumes.append(torch.linalg.slogdet(basis.mT @ hessian @ basis).logabsdet / 2)
    return torch.cat(volumes).expand(points.shape[0])
