"""Random attention work for property tests: small enough for the oracle, rich in odd cases."""

from __future__ import annotations

from hypothesis import strategies as st

from fa_triton.planner import AttnWork


@st.composite
def attn_works(draw: st.DrawFn, longest_q: int = 70, longest_kv: int = 300) -> AttnWork:
    batch = draw(st.integers(1, 5))
    q_len = st.one_of(st.integers(0, 4), st.integers(0, longest_q))
    kv_len = st.one_of(st.integers(0, 4), st.integers(0, longest_kv))
    num_heads_kv = draw(st.integers(1, 3))
    mask_mode = draw(st.sampled_from([0, 3, 4]))
    window = st.sampled_from([-1, 0, 1, 7, 40]) if mask_mode == 4 else st.just(-1)
    return AttnWork(
        q_lens=draw(st.lists(q_len, min_size=batch, max_size=batch)),
        kv_lens=draw(st.lists(kv_len, min_size=batch, max_size=batch)),
        num_heads_q=num_heads_kv * draw(st.sampled_from([1, 2, 3, 8])),
        num_heads_kv=num_heads_kv,
        head_dim=draw(st.sampled_from([40, 64, 128, 256])),
        mask_mode=mask_mode,
        win_left=draw(window),
        win_right=draw(window),
        layout_q=draw(st.sampled_from(["BSND", "BNSD", "TND"])),
    )


@st.composite
def machines(draw: st.DrawFn) -> dict[str, int]:
    num_aic = draw(st.sampled_from([1, 2, 3, 5, 8, 20, 36]))
    return {"num_aic": num_aic, "num_aiv": num_aic * draw(st.sampled_from([1, 2]))}


@st.composite
def block_sizes(draw: st.DrawFn) -> dict[str, int]:
    return {
        "block_q": draw(st.sampled_from([4, 16, 64])),
        "block_kv": draw(st.sampled_from([8, 16, 64])),
    }
