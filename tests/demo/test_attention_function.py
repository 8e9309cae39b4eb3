"""The attention function that transformers calls, on random tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from fa_triton.integrations.transformers import attention, real_keys, register


class _Layer(nn.Module):
    is_causal = True


class _Encoder(nn.Module):
    is_causal = False


def _inputs(
    batch: int = 2, heads: tuple[int, int] = (4, 2), lengths: tuple[int, int] = (5, 5)
) -> tuple[Tensor, Tensor, Tensor]:
    """Random tensors in the shapes and strides of a decoder's prefill."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(batch, lengths[0], heads[0], 64, generator=generator).transpose(1, 2)
    key = torch.randn(batch, heads[1], lengths[1], 64, generator=generator)
    value = torch.randn(batch, heads[1], lengths[1], 64, generator=generator)
    return query, key, value


def _expected(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    scaling: float,
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Dense attention in fp64 under a mask that broadcasts to ``[B, Nq, Sq, Skv]``."""
    group = query.shape[1] // key.shape[1]
    key, value = (t.double().repeat_interleave(group, 1) for t in (key, value))
    scores = scaling * query.double() @ key.transpose(2, 3)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        column = sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    weights = scores.softmax(-1)[..., : key.shape[2]]
    return torch.nan_to_num(weights @ value).transpose(1, 2).float()


def _causal(q_length: int, kv_length: int, window: int | None = None) -> Tensor:
    rows = torch.arange(q_length)[:, None] + kv_length - q_length
    columns = torch.arange(kv_length)[None]
    visible = columns <= rows
    return visible if window is None else visible & (columns > rows - window)


@pytest.mark.parametrize("lengths", [(5, 5), (1, 9), (3, 9), (70, 70)])
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (4, 1)])
def test_causal(lengths: tuple[int, int], heads: tuple[int, int]) -> None:
    query, key, value = _inputs(heads=heads, lengths=lengths)
    out, weights = attention(_Layer(), query, key, value, None, scaling=0.125)
    assert weights is None
    assert out.shape == (2, lengths[0], heads[0], 64)
    assert out.is_contiguous()
    expected = _expected(query, key, value, _causal(*lengths), 0.125)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_scaling_defaults_to_the_usual_one() -> None:
    query, key, value = _inputs()
    torch.testing.assert_close(
        attention(_Layer(), query, key, value, None)[0],
        attention(_Layer(), query, key, value, None, scaling=64**-0.5)[0],
    )


def test_layer_without_causality() -> None:
    query, key, value = _inputs(lengths=(3, 8))
    expected = _expected(query, key, value, torch.ones(3, 8, dtype=torch.bool), 0.125)
    for layer, flag in ((_Encoder(), None), (_Layer(), False)):
        out, _ = attention(layer, query, key, value, None, scaling=0.125, is_causal=flag)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [1, 2, 4, 8, 9, 100])
@pytest.mark.parametrize("lengths", [(9, 9), (1, 9), (3, 9)])
def test_sliding_window(window: int, lengths: tuple[int, int]) -> None:
    query, key, value = _inputs(lengths=lengths)
    out, _ = attention(_Layer(), query, key, value, None, scaling=0.125, sliding_window=window)
    expected = _expected(query, key, value, _causal(*lengths, window), 0.125)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("q_length", [6, 2, 1])
def test_left_padding(q_length: int, window: int | None) -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1]]).bool()
    query, key, value = _inputs(batch=3, lengths=(q_length, 6))
    key[~mask.unsqueeze(1).expand(-1, 2, -1)] = torch.nan
    value[~mask.unsqueeze(1).expand(-1, 2, -1)] = torch.nan
    out, _ = attention(_Layer(), query, key, value, mask, scaling=0.125, sliding_window=window)
    visible = _causal(q_length, 6, window) & mask[:, None, None]
    clean_key, clean_value = torch.nan_to_num(key), torch.nan_to_num(value)
    expected = _expected(query, clean_key, clean_value, visible, 0.125)
    real = mask[:, -q_length:, None, None]
    torch.testing.assert_close(out, expected * real, rtol=1e-4, atol=1e-5)
    assert out.is_contiguous()


@pytest.mark.parametrize("row", ["111000", "101101", "000000", "010110"])
def test_padding_anywhere(row: str) -> None:
    mask = torch.tensor([[c == "1" for c in row], [True] * 6])
    query, key, value = _inputs(lengths=(6, 6))
    out, _ = attention(_Layer(), query, key, value, mask, scaling=0.125)
    expected = _expected(query, key, value, _causal(6, 6) & mask[:, None, None], 0.125)
    torch.testing.assert_close(out, expected * mask[:, :, None, None], rtol=1e-4, atol=1e-5)


def test_batch_of_padding_only() -> None:
    query, key, value = _inputs(lengths=(2, 2))
    mask = torch.zeros(2, 2, dtype=torch.bool)
    assert not attention(_Layer(), query, key, value, mask, scaling=0.125)[0].any()


@pytest.mark.parametrize("padded", [False, True])
def test_keys_past_the_mask_are_cut(padded: bool) -> None:
    query, key, value = _inputs(lengths=(2, 9))
    key[:, :, 5:] = torch.nan
    value[:, :, 5:] = torch.nan
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0, :2] = not padded
    out, _ = attention(_Layer(), query, key, value, mask, scaling=0.125)
    visible = _causal(2, 5) & mask[:, None, None]
    expected = _expected(query, key[:, :, :5], value[:, :, :5], visible, 0.125)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padded", [False, True])
def test_sinks(padded: bool) -> None:
    query, key, value = _inputs(lengths=(4, 4))
    sinks = torch.tensor([0.5, -1.0, 3.0, 0.0])
    mask = torch.ones(2, 4, dtype=torch.bool)
    mask[0, 0] = not padded
    out, _ = attention(_Layer(), query, key, value, mask, scaling=0.125, s_aux=sinks)
    visible = _causal(4, 4) & mask[:, None, None]
    expected = _expected(query, key, value, visible, 0.125, sinks) * mask[:, :, None, None]
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padded", [False, True])
def test_softcap(padded: bool) -> None:
    query, key, value = _inputs(lengths=(4, 4))
    mask = torch.ones(2, 4, dtype=torch.bool)
    mask[0, 0] = not padded
    out, _ = attention(_Layer(), query, key, value, mask, scaling=1.0, softcap=2.0)
    visible = _causal(4, 4) & mask[:, None, None]
    expected = _expected(query, key, value, visible, 1.0, softcap=2.0) * mask[:, :, None, None]
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    uncapped = _expected(query, key, value, visible, 1.0) * mask[:, :, None, None]
    assert (out - uncapped).abs().max() > 0.01


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_output_has_the_dtype_of_the_query(dtype: torch.dtype) -> None:
    query, key, value = (t.to(dtype) for t in _inputs())
    out, _ = attention(_Layer(), query, key, value, None, scaling=0.125)
    assert out.dtype == dtype
    expected = _expected(query, key, value, _causal(5, 5), 0.125)
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("dropout", 0.1, "`dropout` must be 0, got 0.1"),
        ("position_bias", torch.zeros(1, 4, 5, 5), "`position_bias` must be None"),
        ("output_attentions", True, "`output_attentions` must be None"),
        ("cu_seq_lens_q", torch.tensor([0, 5]), "`cu_seq_lens_q` must be None"),
        ("something_new", 1, "`something_new` must be None"),
    ],
)
def test_arguments_that_are_refused(argument: str, value: object, message: str) -> None:
    arguments = {"scaling": 0.125, argument: value}
    with pytest.raises(NotImplementedError, match=message):
        attention(_Layer(), *_inputs(), None, **arguments)  # pyright: ignore[reportArgumentType]


def test_arguments_that_say_nothing_are_accepted() -> None:
    attention(
        _Layer(),
        *_inputs(),
        None,
        scaling=0.125,
        softcap=None,
        output_attentions=False,
        use_cache=True,
        position_ids=torch.arange(5)[None],
    )


@pytest.mark.parametrize(
    "mask",
    [torch.zeros(2, 1, 5, 5), torch.ones(2, 5), torch.ones(2, 1, 5, 5, dtype=torch.bool)],
    ids=["4-D float", "2-D float", "4-D bool"],
)
def test_masks_of_another_kind_are_refused(mask: Tensor) -> None:
    with pytest.raises(NotImplementedError, match="`attention_mask` must be 2-D bool"):
        attention(_Layer(), *_inputs(), mask, scaling=0.125)


def test_combinations_that_are_refused() -> None:
    mask = torch.tensor([[False, True, False, True, True], [True] * 5])
    with pytest.raises(NotImplementedError, match="padding at the ends"):
        attention(_Layer(), *_inputs(), mask, scaling=0.125, sliding_window=2)
    with pytest.raises(NotImplementedError, match="must come with a causal layer"):
        attention(_Encoder(), *_inputs(), mask, scaling=0.125)
    with pytest.raises(NotImplementedError, match="must come with a causal layer"):
        attention(_Encoder(), *_inputs(), None, scaling=0.125, sliding_window=2)
    with pytest.raises(ValueError, match="at least as many keys as queries"):
        attention(_Layer(), *_inputs(lengths=(5, 3)), None, scaling=0.125)


def test_gradients_are_refused() -> None:
    query, key, value = _inputs()
    with pytest.raises(NotImplementedError, match="no backward pass"):
        attention(_Layer(), query.requires_grad_(), key, value, None, scaling=0.125)
    with torch.no_grad():
        attention(_Layer(), query, key, value, None, scaling=0.125)


def test_lengths_are_read_once_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    import fa_triton.integrations.transformers as adapter

    seen = []
    monkeypatch.setattr(adapter, "pack", lambda *a: seen.append(a) or None)
    mask = torch.ones(2, 5, dtype=torch.bool)
    for _ in range(3):
        attention(_Layer(), *_inputs(), mask, scaling=0.125)
    assert len(seen) == 1
    attention(_Layer(), *_inputs(), mask[:], scaling=0.125)
    assert len(seen) == 2


def test_steps_are_forgotten_with_their_mask() -> None:
    import fa_triton.integrations.transformers as adapter

    before = len(adapter._steps)
    mask = torch.tensor([[False, True, True, True, True], [True] * 5])
    attention(_Layer(), *_inputs(), mask, scaling=0.125)
    assert len(adapter._steps) == before + 1
    del mask
    assert len(adapter._steps) == before


def test_register_covers_attention_and_mask() -> None:
    register("fa_triton_under_test")
    assert AttentionInterface()["fa_triton_under_test"] is attention
    assert AttentionMaskInterface()["fa_triton_under_test"] is real_keys


def test_mask_function_without_padding() -> None:
    assert real_keys(batch_size=2, q_length=3, kv_length=3) is None
    assert real_keys(batch_size=2, q_length=1, kv_length=9, q_offset=8) is None


def test_mask_function_tells_how_full_a_static_cache_is() -> None:
    found = real_keys(batch_size=2, q_length=2, kv_length=16, q_offset=torch.tensor(3))
    assert found is not None
    assert found.shape == (2, 5)
    assert found.all()
    whole = torch.ones(2, 16, dtype=torch.bool)
    found = real_keys(batch_size=2, q_length=2, kv_length=16, q_offset=3, attention_mask=whole)
    assert found is not None
    assert found.shape == (2, 5)


def test_mask_function_follows_a_window_cache() -> None:
    # 10 tokens, the cache holds the last 4 and the query is one token.
    mask = torch.ones(1, 10, dtype=torch.bool)
    mask[:, :7] = False
    arguments = {
        "batch_size": 1,
        "q_length": 1,
        "kv_length": 4,
        "q_offset": 9,
        "kv_offset": 6,
        "local_size": 4,
        "mask_function": sliding_window_causal_mask_function(4),
    }
    found = real_keys(attention_mask=mask, **arguments)
    assert found is not None
    assert found.tolist() == [[False, True, True, True]]
    again = real_keys(attention_mask=found, **arguments)
    assert again is not None
    assert again.tolist() == found.tolist()
    assert again is not found


def test_mask_function_wants_all_tokens_covered() -> None:
    with pytest.raises(ValueError, match="must cover the 6 tokens so far"):
        real_keys(
            batch_size=1,
            q_length=1,
            kv_length=6,
            q_offset=5,
            attention_mask=torch.ones(1, 3, dtype=torch.bool),
        )


def test_patterns_other_than_causal_are_refused() -> None:
    patterns = [
        (chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.int)), 4),
        (sliding_window_causal_mask_function(4), 5),
        (and_masks(causal_mask_function, lambda *_: torch.tensor(True)), None),
    ]
    for mask_function, local_size in patterns:
        with pytest.raises(NotImplementedError, match="must be causal"):
            real_keys(
                batch_size=1,
                q_length=4,
                kv_length=4,
                mask_function=mask_function,
                local_size=local_size,
            )


def test_bidirectional_pattern_only_without_padding() -> None:
    mask = torch.ones(1, 4, dtype=torch.bool)
    pattern = {"batch_size": 1, "q_length": 4, "kv_length": 4}
    pattern["mask_function"] = bidirectional_mask_function
    assert real_keys(**pattern) is None
    assert real_keys(attention_mask=mask, **pattern) is None
    mask[0, 0] = False
    with pytest.raises(NotImplementedError, match="bidirectional without"):
        real_keys(attention_mask=mask, **pattern)
