"""Activations that only training reaches are sites too."""

import torch
import torch.nn.functional as F
import unusual_nets as nets

from lit_gelu import surgery

X = torch.randn(1, 4, generator=torch.Generator().manual_seed(1))  # one example, which batch normalisation refuses


def build(cls):
    torch.manual_seed(0)
    return cls()


def test_they_are_found_and_told_apart():
    sites = surgery.find_sites(build(nets.InTraining), X)
    found = {site.name: [(call.count, call.training_only) for call in site.calls] for site in sites}
    assert found == {"act": [(1, False)], "auxiliary": [(1, True)], ":gelu": [(1, True)]}
    assert str(next(site for site in sites if site.name == ":gelu").calls[0]).endswith("1 time, in training alone")


def test_coverage_says_so_and_counts_them_in_training_mode():
    model = build(nets.InTraining)
    report = surgery.coverage(model, X)
    assert report.counts() == {"relu": 1}
    assert {row.name for row in report.sites if row.training_only} == {"auxiliary", ":gelu"}
    assert report.never_ran == ()
    assert "auxiliary: relu, runs in training alone" in str(report)
    assert surgery.coverage(model, X, training=True).counts() == {"relu": 2, "gelu": 1}


def test_a_swap_reaches_them():
    model = build(nets.InTraining)
    report = surgery.swap(model, {"*": "silu"}, X)
    assert len(report) == 3
    assert surgery.coverage(model, X, training=True).counts() == {"silu": 3}
    model.train()
    model.norm.eval(), model.dropout.eval()
    expected = F.silu(model.norm(model.linear(X))) + F.silu(F.silu(X))
    torch.testing.assert_close(model(X), expected)


def test_the_pass_leaves_no_trace():
    model = build(nets.InTraining)
    model.norm.eval()
    flags = [module.training for module in model.modules()]
    state, random = {key: value.clone() for key, value in model.state_dict().items()}, torch.get_rng_state()
    surgery.swap(model, {"*": "silu"}, X).undo()
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_a_model_that_wants_more_in_training_is_surveyed_in_evaluation_and_the_reports_say_so():
    model = build(nets.WantsTargets)
    note = (
        "What runs in training alone is not known: the sample fails in training mode (targets should not be none when "
        "in training mode)."
    )
    assert [site.name for site in surgery.find_sites(model, X)] == ["act"]
    assert surgery.coverage(model, X).notes == (note,)
    assert note in str(surgery.coverage(model, X))
    assert surgery.swap(model, {"*": "silu"}, X).notes == (note,)
    assert surgery.swap(model, {"*": "gelu"}, (X, X)).notes == ()
