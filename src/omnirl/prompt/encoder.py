"""A dataset row in token space: messages → template → text of clips → compact ids → expanded ids → length check.

What the encoder returns is exactly what engines and trainers see. Literal media markers in text (`<image>`, `</img>`, …) stay
text; only structural image and video parts become placeholders.

Example:
    encoder = PromptEncoder(tokenizer, spec, loader, cfg.prompt, context=2048, max_new_tokens=16, max_media=8)
    encoder.encode(prompt)            # EncodedPrompt
    encoder.encode_target(prompt)     # int32 ids of "<answer>3</answer>" and the stop token
"""

import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnirl.config.schema import PromptConfig
from omnirl.errors import DataError, MediaError, PlaceholderMismatch, PromptTooLong
from omnirl.media import MediaLoader, shortened
from omnirl.media.video import ClipLoader
from omnirl.types import (
    CompactIds,
    EncodedPrompt,
    ExpandedIds,
    ImagePart,
    MediaRef,
    Message,
    ModelSpec,
    Part,
    Prompt,
    TextPart,
    VideoPart,
)

from .clips import clip_text
from .expand import expand
from .template import ChatTemplate
from .tokenizer import Tokenizer

# A Unicode noncharacter, put inside literal markers so that neither template nor tokenizer sees them; text is cut there again.
_BREAK = "\ufdd0"


class PromptEncoder:
    """Encodes prompts and decodes completions for one checkpoint.

    `context`: the longest sequence (`backend.max_model_len`), of which `max_new_tokens` are kept for the completion. A row's
    own system message wins over `cfg.system`. The last `cache_size` encoded prompts are remembered, which claims none of their
    pictures: what the store has dropped is read again. Thread-safe.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        spec: ModelSpec,
        loader: MediaLoader,
        cfg: PromptConfig,
        *,
        context: int,
        max_new_tokens: int,
        max_media: int,
        clips: ClipLoader | None = None,
        cache_size: int = 8192,
    ) -> None:
        self.tokenizer = tokenizer
        self.spec = spec
        self.loader = loader
        self.clips = clips
        self.cfg = cfg
        self.context = context
        self.max_new_tokens = max_new_tokens
        self.max_media = max_media
        self.template = ChatTemplate.load(cfg.template, spec.path, tokenizer, cfg.template_kwargs)
        self._image = tokenizer.decode([spec.image_id])
        self._video = spec.video.marker if spec.video is not None else "<video>"
        markers = sorted({*spec.media_markers, self._video}, key=len, reverse=True)
        self._markers = re.compile("|".join(map(re.escape, markers)))
        self._structural = re.compile(f"({re.escape(self._image)})|{re.escape(self._video)}")
        self._cache: OrderedDict[tuple[str, str, tuple[Message, ...]], EncodedPrompt] = OrderedDict()
        self._cache_size = cache_size
        self._lock = Lock()

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Raises `MediaError` (a picture, or too many), `PlaceholderMismatch` (template against pictures), `PromptTooLong`
        (after expansion), `DataError` (the template refuses the messages); each names the prompt."""
        key = (prompt.id, prompt.root, prompt.messages)
        with self._lock:
            known = self._cache.get(key)
            if known is not None:
                self._cache.move_to_end(key)
        if known is not None and (found := self._claimed(known)) is not None:
            return found
        encoded = self._encode(prompt)
        with self._lock:
            self._cache[key] = replace(encoded, media=tuple(map(replace, encoded.media))) if encoded.media else encoded
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return encoded

    def _claimed(self, known: EncodedPrompt) -> EncodedPrompt | None:
        """The same with references that keep their pictures; None when one is no longer in the store."""
        if not known.media:
            return known
        media = tuple(ref for ref in map(self.loader.store.claim, known.media) if ref is not None)
        return replace(known, media=media) if len(media) == len(known.media) else None

    def check(self, prompt: Prompt) -> None:
        """What can be said of a row without opening its media, so that all rows are judged before anything is generated.

        Raises `MediaError` (too many, or clips that the checkpoint does not take), `DataError` (template variables)."""
        name = f"prompt {prompt.id!r}"
        self.template.accept(prompt.meta.get("template_kwargs"), name)
        parts = _media(prompt)
        if len(parts) > self.max_media:
            raise MediaError(
                f"{name}: {len(parts)} pictures and clips, the limit is {self.max_media}; raise `media.max_per_prompt`, or "
                "remove some"
            )
        for part in parts:
            if isinstance(part, VideoPart):
                self._clip_loader(part, name).check(part.sampling, _medium(part, name))

    def encode_target(self, prompt: Prompt) -> NDArray[np.int32]:
        """int32 ids of the row's target and the stop id. Raises `DataError` for a row without a target."""
        if prompt.target is None:
            raise DataError(
                f"prompt {prompt.id!r} has no `target`; the supervised warm-up (`trainer.warmup.max_steps`) needs one"
            )
        ids = self._ids(self._literal(prompt.target, f"prompt {prompt.id!r}"))
        return np.array([*ids, self.spec.stop_ids[0]], dtype=np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`, special tokens kept."""
        return self.tokenizer.decode(ids)

    def decode_plain(self, ids: Iterable[int]) -> str:
        """Text of `ids` without special tokens."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def render(self, prompt: Prompt) -> str:
        """The text before tokenization, one marker a picture or clip; literal markers are cut by U+FDD0."""
        name = f"prompt {prompt.id!r}"
        messages = [{"role": message.role, "content": self._content(message.parts, name)} for message in self._messages(prompt)]
        try:
            return self.template.render(messages)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error

    def _encode(self, prompt: Prompt) -> EncodedPrompt:
        name = f"prompt {prompt.id!r}"
        self.check(prompt)
        text = self.render(prompt)
        media = tuple(self._load(part, prompt.root, name) for part in _media(prompt))
        if any(ref.kind == "video" for ref in media):
            text = self._with_clips(text, media, name)
        counts = [ref.num_tokens // ref.num_runs for ref in media for _ in range(ref.num_runs)]
        ids, positions = expand(CompactIds(self._ids(text)), counts, self.spec, name=name)
        if self.cfg.over_length == "mask" and len(ids) + self.max_new_tokens > self.context:
            return self._masked(prompt, name)
        self._check_length(len(ids), sum(counts), name)
        return EncodedPrompt(prompt.id, ids, media, positions)

    def _masked(self, prompt: Prompt, name: str) -> EncodedPrompt:
        """The prompt without its pictures and clips, and of its text the end that fits."""
        messages = (Message(m.role, tuple(p for p in m.parts if isinstance(p, TextPart))) for m in prompt.messages)
        ids = self._ids(self.render(replace(prompt, messages=tuple(messages))))
        if (room := self.context - self.max_new_tokens) < 1:
            self._check_length(len(ids), 0, name)
        return EncodedPrompt(prompt.id, ExpandedIds(ids[-room:]), (), np.zeros((0, 2), dtype=np.int32), masked=True)

    def _load(self, part: ImagePart | VideoPart, base: str, name: str) -> MediaRef:
        if isinstance(part, ImagePart):
            return self.loader.load(part.path, base=base, name=_medium(part, name))
        return self._clip_loader(part, name).load(part.path, part.sampling, base=base, name=_medium(part, name))

    def _clip_loader(self, part: VideoPart, name: str) -> ClipLoader:
        if self.clips is None:
            raise MediaError(
                f"{_medium(part, name)}: the checkpoint {self.spec.path} (model.family={self.spec.family}) takes no clips; "
                "choose another model by `model.path` or `model.family`, or remove the row"
            )
        return self.clips

    def _with_clips(self, text: str, media: tuple[MediaRef, ...], name: str) -> str:
        """`text` with the words and placeholders of its clips. Literal markers are cut: what matches here is structural."""
        assert self.spec.video is not None  # else no clip was loaded
        found = ["image" if match[1] else "video" for match in self._structural.finditer(text)]
        if found != (expected := [ref.kind for ref in media]):
            raise PlaceholderMismatch(
                f"{name}: the chat template (`prompt.template`, or the checkpoint's) rendered {_list(found)} for the parts "
                f"{_list(expected)}; it must write one {self._image} for each picture and one {self._video} for each clip, in "
                "order"
            )
        tubelet = self.spec.video.rule.tubelet
        words = iter([clip_text(r.sampling.timestamps_ms, tubelet, self._image) if r.sampling else self._image for r in media])
        return self._structural.sub(lambda _: next(words), text)

    def _messages(self, prompt: Prompt) -> tuple[Message, ...]:
        messages = prompt.messages
        if self.cfg.suffix:
            last = max((i for i, m in enumerate(messages) if m.role == "user"), default=None)
            if last is not None:
                extended = Message("user", (*messages[last].parts, TextPart(self.cfg.suffix)))
                messages = (*messages[:last], extended, *messages[last + 1 :])
        if self.cfg.system is not None and not any(m.role == "system" for m in messages):
            messages = (Message("system", (TextPart(self.cfg.system),)), *messages)
        return messages

    def _content(self, parts: tuple[Part, ...], name: str) -> str | list[dict[str, Any]]:
        """Text alone is a string, which every template takes; with media a list of parts."""
        items: list[dict[str, Any]] = [
            {"type": "text", "text": self._literal(part.text, name)}
            if isinstance(part, TextPart)
            else {"type": "image" if isinstance(part, ImagePart) else "video"}
            for part in parts
        ]
        if all(item["type"] == "text" for item in items):
            return "".join(item["text"] for item in items)
        return items

    def _literal(self, text: str, name: str) -> str:
        if _BREAK in text:
            raise DataError(f"{name}: the text holds U+FDD0, which is not a character; remove it")
        return self._markers.sub(lambda match: match[0][0] + _BREAK + match[0][1:], text)

    def _ids(self, text: str) -> list[int]:
        if _BREAK not in text:
            return self.tokenizer.encode(text)
        return [i for piece in text.split(_BREAK) for i in self.tokenizer.encode(piece)]

    def _check_length(self, length: int, media_tokens: int, name: str) -> None:
        if length + self.max_new_tokens > self.context:
            raise PromptTooLong(
                f"{name}: {length} tokens after expansion ({media_tokens} of them pictures and clips) + {self.max_new_tokens} "
                f"new tokens exceed the context of {self.context}; raise `backend.max_model_len`, or lower "
                "`rollout.max_new_tokens`, `media.max_patches` or, of clips, `media.video_num_frames` or "
                "`media.video_patches`, or leave such rows out with `prompt.over_length`"
            )


def _media(prompt: Prompt) -> list[ImagePart | VideoPart]:
    return [part for message in prompt.messages for part in message.parts if not isinstance(part, TextPart)]


def _medium(part: ImagePart | VideoPart, name: str) -> str:
    """What messages call it."""
    return f"{shortened(part.path)} ({name})"


def _list(kinds: list[str]) -> str:
    return ", ".join(kinds) or "none"
