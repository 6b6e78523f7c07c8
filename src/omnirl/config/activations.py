"""Bytes that one microbatch keeps for its backward pass, layer by layer, in transformers' models (5.19, without fused kernels).

Each function lists the tensors that autograd saves; `docs/memory.md` has the same as a table. n: tokens, padding included;
width: bytes a number in the model's dtype. Norms, the router and the Mamba-2 scan compute in float32 in any dtype.

Example:
    parts = activations(architecture, Load(sequences=8, tokens=256, responses=64, pictures=1, patches=16), width=4)
    parts.kept(checkpointing=False) + parts.working(checkpointing=False)   # the peak
"""

from dataclasses import dataclass

from omnirl.config.architecture import Architecture

_INDEX = 8
"""Bytes of an int64."""

_LOGITS_CHUNK = 64 * 2**20
"""Most bytes of logits that the log-prob function takes to float32 at a time."""


@dataclass(frozen=True, slots=True)
class Load:
    """One microbatch: `sequences` padded to `tokens`, `responses` scored tokens in all, and `pictures` different pictures of
    `patches` patches each. Every sequence shows `pictures_each` of them."""

    sequences: int
    tokens: int
    responses: int
    pictures: int
    patches: int
    pictures_each: int = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """Bytes of one layer: `saved` inside it for its backward pass, of which `shared` is its `input` itself, and at most
    `gradients` beside them while it is computed."""

    saved: float
    input: float
    shared: float
    gradients: float


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes. `stages`: vision tower, then language model. `before`, `after`: saved around them. `logits`: in float32, their
    gradient, and the chunk at work. `norm`: gradients of the last norm, in float32."""

    stages: tuple[Stage, ...]
    before: float
    after: float
    logits: float
    norm: float

    def kept(self, checkpointing: bool) -> float:
        """From the forward pass to the backward pass, without the logits; with checkpointing only the layers' inputs."""
        return self.before + self.after + sum(s.input if checkpointing else s.saved for s in self.stages)

    def working(self, checkpointing: bool) -> float:
        """At most on top of `kept`: the logits when the backward pass begins, or the gradients of a layer (and what is computed
        again of it), less what later layers have given back by then."""
        most, returned = max(self.logits, self.norm), self.after
        for stage in reversed(self.stages):
            again = stage.saved - stage.shared if checkpointing else 0.0
            most = max(most, again + stage.gradients - returned)
            returned += stage.input if checkpointing else stage.saved
        return most


def activations(a: Architecture, load: Load, width: int, vision: bool = True) -> Activations:
    """`vision`: gradients flow into the vision tower, so that it keeps anything."""
    n, r, merged = load.sequences * load.tokens, load.responses, a.vision.hidden * a.merge**2
    patches = load.pictures * load.patches
    embeddings, placed = patches // a.merge**2, load.sequences * load.pictures_each * load.patches // a.merge**2
    projector = _norm(embeddings, merged, width) + embeddings * width * (merged + 2 * a.projector)
    tower = load.pictures * (load.patches + a.vision.prefix) if vision else 0
    pixels = patches * 3 * a.vision.patch**2 * width if vision else 0
    return Activations(
        stages=(_vision_stage(a, tower, width),) * a.vision.layers
        + tuple(_stage(a, letter, load, width) for letter in a.pattern),
        before=pixels + projector + n * _INDEX + placed * (_INDEX + a.hidden * width),
        after=n * (8 * a.hidden + 4) + r * (a.hidden * width + 5 * _INDEX),
        logits=4 * r * a.vocab * 2 + min(4 * r * a.vocab, _LOGITS_CHUNK),
        norm=16 * n * a.hidden,
    )


def _stage(a: Architecture, letter: str, load: Load, width: int) -> Stage:
    n = load.sequences * load.tokens
    saved, gradients = _MIXERS[letter](a, load, width)
    cast = width < 4
    return Stage(
        saved=_norm(n, a.hidden, width) + saved,
        input=n * a.hidden * width,
        shared=0.0 if cast else n * a.hidden * width,  # the norm works on a float32 copy, or on the input itself
        gradients=n * a.hidden * width + max(gradients, 8 * n * a.hidden if cast else 0),
    )


def _vision_stage(a: Architecture, n: int, width: int) -> Stage:
    """Two layer norms (input, output, two statistics), q, k, v and output, log-sum-exp, gelu's input and output."""
    v = a.vision
    saved = n * ((8 * v.hidden + 2 * v.ffn) * width + 16 + 4 * v.heads)
    return Stage(saved, n * v.hidden * width, n * v.hidden * width, n * (v.hidden + 2 * v.ffn) * width)


def _norm(n: int, h: int, width: int) -> float:
    """Of RMSNorm in float32: input (or its copy), inverse root, normalised; and the output, which the next layer saves."""
    return n * (8 * h + 4 + h * width)


def _attention(a: Architecture, load: Load, width: int) -> tuple[float, float]:
    """q, output, k, v, and one log-sum-exp a head: scores are never stored. Gradients of the same four."""
    n, four = load.sequences * load.tokens, 2 * (a.heads + a.kv_heads) * a.head_dim * width
    return n * (four + 4 * a.heads), n * four


def _mlp(a: Architecture, load: Load, width: int) -> tuple[float, float]:
    """relu and its square; three temporaries of the square's gradient."""
    ffn = load.sequences * load.tokens * a.ffn * width
    return 2 * ffn, 3 * ffn


def _experts(a: Architecture, load: Load, width: int) -> tuple[float, float]:
    """Router; for each of its experts a token's input, relu, square, output, indices and weight; the shared expert. Gradients:
    as of an MLP, or of the float32 weighting of outputs; the shared expert is done by then."""
    n, e = load.sequences * load.tokens, a.experts
    latent = e.latent or a.hidden
    router = (4 * a.hidden if width < 4 else 0) + 5 * e.count + 28 + 12 * e.top_k
    routed = e.top_k * ((2 * latent + 2 * e.ffn) * width + 3 * _INDEX + 4)
    more = (latent + latent) * width if e.latent else 0
    gradients = 3 * e.top_k * max(e.ffn * width, 4 * latent) - 4 * a.hidden
    return n * (router + routed + 2 * e.shared * width + more), n * gradients


def _mamba(a: Architecture, load: Load, width: int) -> tuple[float, float]:
    """Projection, convolution, the scan in chunks of c tokens (padded to whole chunks), gated norm, output. Gradients: of the
    gated norm, about four times its width in float32."""
    m, b = a.mamba, load.sequences
    chunks = -(-load.tokens // m.chunk)
    n, padded = b * load.tokens, b * chunks * m.chunk
    cast = width < 4
    projected = n * (m.inner + m.channels + m.heads) * width + b * m.channels * (load.tokens + m.conv - 1) * width
    steps = n * m.heads * (2 * width + 4 + 4 * cast) + 4 * n * (m.inner if cast else m.channels)
    within = 4 * padded * m.heads * (3 * m.chunk + 2)  # decay, C·B and their product, exponents
    states = (
        4 * padded * (4 * m.inner + 5 * m.heads * m.state)
    )  # x four times; C and B by head, B decayed and by chunk, C again
    between = 4 * b * m.heads * ((2 * chunks + 1) * m.head_dim * m.state + (chunks + 1) ** 2)
    gated = 4 * (n * m.inner * (3 + cast) + padded * m.inner + n * m.groups) + n * m.inner * width
    return projected + steps + within + states + between + gated, 16 * n * m.inner


_MIXERS = {"M": _mamba, "*": _attention, "-": _mlp, "E": _experts}
