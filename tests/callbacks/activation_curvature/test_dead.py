"""Dead units wherever a net has its channels, and no figure where nothing tells or nothing was seen."""

import pytest
import torch
from callback_helpers import quiet_trainer
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import DataLoader

from lit_gelu.callbacks import ActivationCurvatureMonitor

WIDTH, DEAD = 12, 5


class Frozen(LightningModule):
    """Some layers before a linear one; nothing is learned, so that what is dead stays so."""

    def __init__(self, net, shape):
        super().__init__()
        self.net, self.shape = net, shape
        self.head = nn.LazyLinear(1)
        self(torch.zeros(2, *shape))

    def forward(self, x):
        return self.head(self.net(x).flatten(1))

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)

    def train_dataloader(self):
        return DataLoader(torch.randn(16, *self.shape, generator=torch.Generator().manual_seed(0)), batch_size=8)


def killed(layer):
    """The layer, whose first outputs no ReLU lets through."""
    with torch.no_grad():
        layer.bias[:DEAD] = -1e3
    return layer


class Permutes(nn.Module):
    def __init__(self, *dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.permute(self.dims)


def dead_shares(folder, net, shape, epochs=1, **options):
    monitor = ActivationCurvatureMonitor(every_n_steps=1, dead_unit_window=2, **options)
    quiet_trainer(folder, monitor, max_epochs=epochs).fit(Frozen(net, shape))
    return {site: row.get("share_dead") for site, row in monitor.latest.items()}


NETS = {
    "pixels": (lambda: nn.Sequential(killed(nn.Linear(4, WIDTH)), nn.ReLU()), (6, 7, 4)),
    "square": (lambda: nn.Sequential(killed(nn.Linear(4, WIDTH)), nn.ReLU()), (WIDTH, WIDTH, 4)),
    "time": (lambda: nn.Sequential(killed(nn.Conv1d(4, WIDTH, 3)), nn.ReLU()), (4, 20)),
    "time as long as wide": (lambda: nn.Sequential(killed(nn.Conv1d(4, WIDTH, 3)), nn.ReLU()), (4, WIDTH + 2)),
    "image": (lambda: nn.Sequential(killed(nn.Conv2d(4, WIDTH, 3)), nn.Dropout(), nn.ReLU()), (4, 9, 8)),
    "turned": (lambda: nn.Sequential(killed(nn.Conv2d(4, WIDTH, 3)), Permutes(0, 2, 3, 1), nn.ReLU()), (4, 9, 8)),
    "tokens": (lambda: nn.Sequential(killed(nn.Linear(4, WIDTH)), nn.ReLU()), (9, 4)),
    "normalised": (lambda: nn.Sequential(nn.Conv1d(4, WIDTH, 3), killed(nn.BatchNorm1d(WIDTH)), nn.ReLU()), (4, 20)),
}


@pytest.mark.parametrize("rows", ["auto", None, 40])
@pytest.mark.parametrize("name", NETS)
def test_dead_units_in_any_layout(tmp_path, name, rows):
    make, shape = NETS[name]
    [share] = dead_shares(tmp_path, make(), shape, sample_rows=rows).values()
    assert share == DEAD / WIDTH


def test_dead_units_of_a_compiled_net(tmp_path):
    torch._dynamo.reset()
    net = nn.Sequential(killed(nn.Conv1d(4, WIDTH, 3)), nn.ReLU())
    monitor = ActivationCurvatureMonitor(every_n_steps=1, dead_unit_window=2)
    model = Frozen(net, (4, 20))
    model.net.compile(backend="aot_eager")
    quiet_trainer(tmp_path, monitor, max_epochs=1).fit(model)
    assert monitor.latest["net.1"]["share_dead"] == DEAD / WIDTH


def test_no_figure_where_no_layer_tells(tmp_path):
    assert dead_shares(tmp_path, nn.Sequential(Permutes(0, 2, 1), nn.ReLU()), (4, 20)) == {"net.1": None}
