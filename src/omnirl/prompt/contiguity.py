"""A later turn's prompt against what was generated before: the same ids to go on with, or a new segment. Never a silent splice.

Templates render a conversation anew each turn, and tokenizing generated text again rarely gives the ids that were sampled.
Where only the ids differ and the text is the same, the sampled ids stay. Where the text differs (a template that strips earlier
thinking), what was generated cannot be the prefix, and the turn begins a segment of its own.

Example:
    following = follow(earlier, rendered, history, stop_ids={2}, decode=tokenizer.decode)
    following.ids, following.contiguous        # contiguous: ids start with all of `earlier`
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from omnirl.errors import PrefixMismatch


@dataclass(frozen=True, slots=True)
class Following:
    """`ids` of the later turn's prompt. `contiguous`: they begin with all earlier ids; otherwise a new segment begins."""

    ids: tuple[int, ...]
    contiguous: bool


def follow(
    earlier: Sequence[int],
    rendered: Sequence[int],
    history: Sequence[int],
    *,
    stop_ids: Collection[int],
    decode: Callable[[Sequence[int]], str],
) -> Following:
    """`earlier`: prompt and completion of the turn before, as the engine saw and sampled them. `rendered`: the template's ids
    of the whole conversation; `history`: of its part up to and including the last assistant message, without the header of a
    new answer. All in one token space.

    Raises `PrefixMismatch` when `history` holds no stop id, so that nobody can say where the last answer ends.
    """
    if list(rendered[: len(earlier)]) == list(earlier):
        return Following(tuple(rendered), True)
    if decode(_without_stop(earlier, stop_ids)) != decode(_to_last_stop(history, stop_ids)):
        return Following(tuple(rendered), False)
    return Following(tuple(splice(earlier, rendered, history, stop_ids=stop_ids)), True)


def splice(earlier: Sequence[int], rendered: Sequence[int], history: Sequence[int], *, stop_ids: Collection[int]) -> list[int]:
    """`earlier` (without its stop id), then `rendered` from the stop id that ends the last answer. That one is found by
    counting those of `history`, not by length: the history in `rendered` may be shorter. Nothing generated yet: `rendered`.

    Raises `PrefixMismatch` when the stop ids do not lead there.
    """
    if not earlier:
        return list(rendered)
    number = sum(i in stop_ids for i in history)
    if not number:
        raise PrefixMismatch("the rendered history holds no stop id; the chat template must end each answer with one")
    places = [place for place, i in enumerate(rendered) if i in stop_ids]
    if len(places) < number:
        raise PrefixMismatch(
            f"the rendered conversation holds {len(places)} stop ids, its history {number}; the chat template does not render "
            "the history as it stands in the conversation"
        )
    return [*_without_stop(earlier, stop_ids), *rendered[places[number - 1] :]]


def _without_stop(ids: Sequence[int], stop_ids: Collection[int]) -> Sequence[int]:
    return ids[:-1] if ids and ids[-1] in stop_ids else ids


def _to_last_stop(ids: Sequence[int], stop_ids: Collection[int]) -> Sequence[int]:
    """Without the last stop id and what the template puts after it."""
    last = max((place for place, i in enumerate(ids) if i in stop_ids), default=None)
    if last is None:
        raise PrefixMismatch("the rendered history holds no stop id; the chat template must end each answer with one")
    return ids[:last]
