"""The two averages of the path, against a literal float64 reference in rate-time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hdet.signals import trail as trail_module
from hdet.signals.trail import Trail

RATES = [1e-6 * 1.3**step for step in range(60)] + [0.01] * 60
WINDOWS = (0.3, 1.5)


def trail_of(params: list[torch.Tensor], **settings: Any) -> Trail:
    defaults: dict[str, Any] = {"recent_window": 0.3, "older_window": 1.5, "device": None}
    return Trail(params, **{**defaults, **settings})


def walk(params: list[torch.Tensor], generator: torch.Generator, rate: float) -> None:
    for param in params:
        noise = torch.randn(param.shape, generator=generator, dtype=torch.float64)
        param.sub_((rate * (noise + 1.0)).to(param.dtype))


def literal(points: list[float], rates: list[float], every: int) -> tuple[float, float]:
    """Both averages of one number's path: looked at before every k-th step."""
    averages = [points[0], points[0]]
    tau = pending = 0.0
    for step, rate in enumerate(rates):
        if step % every == 0 and pending > 0.0:
            is_first = tau == 0.0
            tau += pending
            for i, window in enumerate(WINDOWS):
                weight = min(1.0, pending / (window * tau))
                if is_first and i == 1:
                    weight = 0.5
                averages[i] += weight * (points[step] - averages[i])
            pending = 0.0
        pending += rate
    return averages[0], averages[1]


def followed(
    dtype: torch.dtype, every: int, **settings: Any
) -> tuple[Trail, list[torch.Tensor], list[list[float]]]:
    generator = torch.Generator().manual_seed(0)
    params = [torch.ones(2, dtype=dtype), torch.full((), 3.0, dtype=dtype)]
    trail = trail_of(params, **settings)
    points = []
    for step, rate in enumerate(RATES):
        points.append([*params[0].tolist(), float(params[1])])
        if step % every == 0:
            trail.extend()
        trail.spend(rate)
        walk(params, generator, rate)
    return trail, params, points


def averages_of(trail: Trail) -> tuple[list[float], list[float]]:
    _, recent, older = trail.at(slice(None))
    found = [torch.cat([own.reshape(-1) for own in side]).tolist() for side in (recent, older)]
    return found[0], found[1]


@pytest.mark.parametrize("every", [1, 3, 7])
def test_a_whole_trajectory_equals_the_reference(every: int) -> None:
    trail, _, points = followed(torch.float64, every)
    recent, older = averages_of(trail)
    for index in range(3):
        path = [point[index] for point in points]
        expected = literal(path, RATES, every)
        assert (recent[index], older[index]) == pytest.approx(expected, rel=1e-13)
        assert abs(expected[0] - expected[1]) > 1e-3, "the averages are apart"


def test_at_a_constant_rate_the_averages_lag_by_their_share_of_the_path() -> None:
    param = torch.zeros((), dtype=torch.float64)
    trail = trail_of([param])
    for _ in range(4000):
        trail.extend()
        trail.spend(0.5)
        param += 1.0
    (recent,), (older,) = averages_of(trail)
    assert 4000 - recent == pytest.approx(4000 * 0.3 / 1.3, rel=2e-3)
    assert 4000 - older == pytest.approx(4000 * 1.5 / 2.5, rel=2e-3)


def test_what_is_written_before_the_first_step_is_no_part_of_the_path() -> None:
    param = torch.zeros(3)
    trail = trail_of([param])
    param.fill_(100.0)  # a checkpoint that is loaded after the scheduler was built
    trail.extend()
    trail.spend(0.1)
    param.sub_(1.0)
    trail.extend()
    recent, older = averages_of(trail)
    assert recent == [99.0] * 3
    assert older == [99.5] * 3


def test_nothing_spent_moves_nothing() -> None:
    param = torch.zeros(3)
    trail = trail_of([param])
    trail.spend(0.1)
    param.sub_(1.0)
    trail.extend()
    before = averages_of(trail)
    param.sub_(1.0)
    trail.spend(0.0)
    trail.extend()
    assert averages_of(trail) == before
    trail.spend(0.1)
    trail.extend()
    assert averages_of(trail) != before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_parameters_have_float32_averages(dtype: torch.dtype) -> None:
    trail, params, points = followed(dtype, 1)
    present, recent, older = trail.at(slice(None))
    assert {own.dtype for own in (*present, *recent, *older)} == {torch.float32}
    for side, which in ((averages_of(trail)[0], 0), (averages_of(trail)[1], 1)):
        for index in range(3):
            expected = literal([point[index] for point in points], RATES, 1)[which]
            assert side[index] == pytest.approx(expected, rel=1e-5)
            # Negative control: in the parameters' own precision the average is another number.
            assert float(torch.tensor(side[index]).to(dtype)) != side[index]
    assert params[0].dtype == dtype


def test_complex_parameters_are_followed_as_pairs_of_reals() -> None:
    param = torch.ones(2, dtype=torch.complex64)
    trail = trail_of([param])
    trail.spend(1.0)
    param += 2j
    trail.extend()
    assert averages_of(trail)[0] == [1.0, 2.0, 1.0, 2.0]


def test_a_reference_device_holds_the_same_averages() -> None:
    near, _, _ = followed(torch.float32, 2)
    far, _, _ = followed(torch.float32, 2, device="cpu")
    assert averages_of(near) == averages_of(far)
    assert {average.device.type for average in (*far._recent, *far._older)} == {"cpu"}


def test_the_copies_are_made_where_they_are_asked_to_be() -> None:
    trail = trail_of([torch.ones(2)], device="meta")
    assert {average.device.type for average in (*trail._recent, *trail._older)} == {"meta"}
    assert trail.device.type == "cpu"


def test_displacing_goes_along_the_path_and_restoring_is_exact() -> None:
    trail, params, _ = followed(torch.float32, 1)
    before = [param.clone() for param in params]
    held = trail.hold()
    _, recent, older = trail.at(slice(None))
    trail.displace(held, 0.25, 0.1)
    for param, own, r, o in zip(params, before, recent, older, strict=True):
        expected = own + 0.25 * ((r - o) + 0.1 * (own - r))
        torch.testing.assert_close(param, expected, rtol=1e-6, atol=0.0)
        assert not torch.equal(param, own)
    trail.restore(held)
    assert all(torch.equal(param, own) for param, own in zip(params, before, strict=True))
    assert trail.params[0].data_ptr() == params[0].data_ptr()


def test_chunks_cover_every_parameter_once_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, _, _ = followed(torch.float64, 1)
    monkeypatch.setattr(trail_module, "_CHUNK", 2)
    parts, _, _ = followed(torch.float64, 1)
    assert (len(whole.chunks), len(parts.chunks)) == (1, 2)
    assert [i for chunk in parts.chunks for i in range(2)[chunk]] == [0, 1]
    assert averages_of(whole) == averages_of(parts)
    sizes = [torch.zeros(size) for size in (1, 1, 5, 1, 1, 1)]
    assert trail_of(sizes).chunks == [slice(0, 2), slice(2, 3), slice(3, 5), slice(5, 6)]


def test_its_state_goes_on_where_it_stood() -> None:
    trail, params, _ = followed(torch.float64, 1)
    other = trail_of([param.clone() for param in params])
    assert averages_of(other) != averages_of(trail)
    other.load_state_dict(trail.state_dict())
    for own in (trail, other):
        own.params[0].sub_(1.0)
        own.spend(0.1)
        own.extend()
    assert averages_of(other) == averages_of(trail)


def test_a_group_without_parameters_has_an_empty_trail() -> None:
    trail = trail_of([])
    trail.spend(0.1)
    trail.extend()
    assert trail.hold() == []
    trail.restore(trail.hold())
    assert trail.device.type == "cpu"
