"""`LasagneBatchNorm`: batch normalisation whose running statistics are those of Lasagne."""

import torch
from torch import Tensor, nn
from torch.nn import functional

# The running inverse deviation holds eps already, but torch 2.11 takes no eps of 0. This one, the smallest normal
# float32, so that a file holds it too, is below half a unit in the last place of every variance that occurs.
_NO_EPS = torch.finfo(torch.float32).tiny


class LasagneBatchNorm(nn.Module):
    """Batch normalisation with a running mean of the inverse standard deviation, as in Lasagne's ``BatchNormLayer``."""

    # weight (x - mu) r + bias with r = 1 / sqrt(sigma^2 + eps): in training mu and sigma^2 are mean and biased variance
    # of the batch, and both mu and r move a share of momentum (Lasagne's alpha) from their running values to the
    # batch's; in evaluation the running values stand in. `torch.nn.BatchNorm2d` trains alike but averages the unbiased
    # variance: the two differ in evaluation, the more the variances of the batches differ. Not converted by
    # `torch.nn.SyncBatchNorm`: on several devices each normalises by its own part of a batch.

    running_mean: Tensor
    running_inverse_std: Tensor

    def __init__(self, channels: int, eps: float = 1e-4, momentum: float = 0.1) -> None:
        super().__init__()
        self.channels = channels
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_inverse_std", torch.ones(channels))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the normalised inputs."""
        if self.training:
            return self._normalise_by_batch(inputs)
        variance = self.running_inverse_std.square().reciprocal()
        return functional.batch_norm(inputs, self.running_mean, variance, self.weight, self.bias, eps=_NO_EPS)

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"{self.channels}, eps={self.eps}, momentum={self.momentum}"

    def _normalise_by_batch(self, inputs: Tensor) -> Tensor:
        # With momentum 1 torch's kernel leaves the batch's own statistics: no second pass over the inputs for them.
        mean, unbiased = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_mean)
        outputs = functional.batch_norm(
            inputs, mean, unbiased, self.weight, self.bias, training=True, momentum=1.0, eps=self.eps
        )
        with torch.no_grad():
            count = inputs.numel() // self.channels
            inverse_std = (unbiased * ((count - 1) / count) + self.eps).rsqrt()
            self.running_mean.lerp_(mean, self.momentum)
            self.running_inverse_std.lerp_(inverse_std, self.momentum)
        return outputs
