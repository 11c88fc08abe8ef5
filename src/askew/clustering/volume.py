"""The volume that a density of points is per unit of: second derivatives of a potential, and where they vanish."""

from __future__ import annotations

import torch
from torch import Tensor

from askew import checks
from askew.potentials import Potential
from askew.potentials.closed_form import Separable

__all__ = ["curved_directions", "log_volumes"]

# Numbers in a block of second derivatives.
BLOCK_ELEMENTS = 1 << 20
# Points whose second derivatives tell in which directions a potential is curved.
CURVATURE_POINTS = 16


@torch.no_grad()
def curved_directions(points: Tensor, potential: Potential) -> Tensor:
    """Return an orthonormal basis of the directions in which a divergence sees points differ, ``(dim, d)``.

    These are all directions in most cases. Left out are the one out of the simplex, and those in which phi is affine
    everywhere, as log-sum-exp is along (1, ..., 1) or a Mahalanobis distance of low rank along the kernel of its
    matrix. A density has as many dimensions as there are such directions.

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
    if isinstance(potential, Separable):
        return basis
    # Half-way to the mean no point lies on the boundary, where second derivatives may be infinite.
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
    r"""Return half the log-determinant of the second derivatives of phi along some directions, ``(n, dim) -> (n,)``.

    .. math:: \tfrac12 \log |Q^T \nabla^2 \phi(x) Q|

    This is what makes the density of a mixture one per unit of volume of the points' own space. It depends on the
    point alone, so it says nothing about the components; it costs ``dim`` squared numbers a point, which are
    made in blocks.

    Examples
    --------
    >>> from askew.potentials import Burg
    >>> log_volumes(torch.tensor([[0.5, 0.5]]), Burg(2), torch.eye(2)).exp()  # 1 / (x_1 x_2)
    tensor([4.], dtype=torch.float64)
    """
    _check_inside(points, potential)
    if isinstance(potential, Separable):
        curvatures = potential.compute_curvatures(points.double())
        # On the simplex, the determinant along it is that of all directions times 1' H^-1 1 / dim.
        along = curvatures.reciprocal().mean(1).log() if potential.domain.sums_to_one else 0.0
        return (curvatures.log().sum(1) + along) / 2
    basis = directions.to(points.device, torch.float64)
    # The second derivatives of a quadratic are the same everywhere.
    chosen = points[:1] if potential.symmetric else points
    volumes = []
    for block in chosen.split(max(1, BLOCK_ELEMENTS // points.shape[1] ** 2)):
        hessian = potential.compute_hessian(block).double()
        volumes.append(torch.linalg.slogdet(basis.mT @ hessian @ basis).logabsdet / 2)
    return torch.cat(volumes).expand(points.shape[0])


def _check_inside(points: Tensor, potential: Potential) -> None:
    inside = potential.contains(points)
    if not bool(inside.all()):
        first = int((~inside).nonzero()[0])
        must = f"inside the {potential.domain} domain, not on its boundary, where a density is infinite"
        hint = "Move such points inside, or leave volumes out: score(X, volume=False)."
        raise ValueError(checks.message("points of a density", must, f"row {first} = {points[first].tolist()}", hint))
