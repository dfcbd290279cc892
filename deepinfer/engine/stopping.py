"""When a sequence ends and what its text is: end-of-sequence, stop tokens, stop strings, lengths.

Stop tokens stay in `token_ids` but give no text. Stop strings are looked for in decoded text, so they may begin and end
anywhere inside tokens.
"""

from __future__ import annotations

from deepinfer.engine.request import Sequence
from deepinfer.engine.tokenizer import Tokenizer


def after_token(sequence: Sequence, token: int) -> str | None:
    """Append a sampled token; returns the finish reason it causes, or None."""
    request, completion = sequence.request, sequence.completion
    sequence.tokens.append(token)
    completion.token_ids.append(token)
    if token in request.eos_ids:
        return "stop"
    if token in request.stop_ids:
        completion.stop_reason = token
        return "stop"
    if sequence.text is not None:
        found = sequence.text.push((token,), sequence.new_tokens >= request.params.min_tokens)
        if found is not None:
            completion.stop_reason = found
            return "stop"
    return "length" if len(sequence.tokens) >= request.limit else None


def close_text(sequence: Sequence, reason: str, tokenizer: Tokenizer | None) -> None:
    """Set finish reason and text; characters that were held back as unfinished become text."""
    request, completion = sequence.request, sequence.completion
    completion.finish_reason = reason
    params = request.params
    if sequence.text is not None:
        found = sequence.text.finish(sequence.new_tokens >= params.min_tokens)
        if found is not None and reason in ("length", "stop"):
            completion.finish_reason, completion.stop_reason = "stop", found
        completion.text = sequence.text.text
    elif tokenizer is not None and params.detokenize:
        ids = completion.token_ids
        ended = reason == "stop" and bool(ids) and (ids[-1] in request.eos_ids or ids[-1] in request.stop_ids)
        completion.text = tokenizer.decode(ids[:-1] if ended else ids, params.skip_special_tokens)
