"""Small models of every kind that people train on text, each with a batch and one loss per example.

ZOO must be exact. EITHER must be exact or refused: their rows are no longer in the order of the batch.
REFUSED has no gradient of one example, or changes its weights on the way: it must raise.
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
nn, fn = torch.nn, torch.nn.functional

D, V, CLASSES = 16, 50, 3

Batch = dict[str, Any]
Loss = Callable[[Any, Batch], Any]


@dataclass(frozen=True)
class Case:
    """`build(examples, length)` gives a model, a batch and, if it is not `loss`, its loss."""

    name: str
    build: Callable[[int, int], tuple[Any, ...]]
    examples: int = 5
    length: int = 7
    random: bool = False  # dropout: an example alone draws otherwise than in the batch
    shaken: bool = True  # parameters are moved off the zeros and ones that they begin with
    quiet: tuple[str, ...] = ()  # beginnings of warnings of libraries that are not ours to mend

    def make(self) -> tuple[Any, Batch, Loss]:
        with torch.random.fork_rng(devices=[]), self.silence():
            torch.manual_seed(zlib.crc32(self.name.encode()))
            model, batch, *rest = self.build(self.examples, self.length)
            model.train()
            with torch.no_grad():
                for weight in model.parameters() if self.shaken else ():
                    weight.add_(torch.randn_like(weight), alpha=0.1)
        return model, batch, (rest[0] if rest else loss)

    @contextmanager
    def silence(self) -> Iterator[None]:
        with warnings.catch_warnings():
            for message in self.quiet:
                warnings.filterwarnings("ignore", message=message)
            yield


ZOO: list[Case] = []
EITHER: list[Case] = []
REFUSED: list[Case] = []
HIDDEN: list[Case] = []


def case(
    name: str, where: list[Case] = ZOO, shapes: tuple[tuple[int, int], ...] = (), **options: Any
) -> Any:
    """Enter a builder, and once more for each (examples, length) of `shapes`."""

    def enter(build: Callable[[int, int], tuple[Any, ...]]) -> Callable[[int, int], tuple[Any, ...]]:
        first = Case(name, build, **options)
        where.append(first)
        where.extend(replace(first, name=f"{name}-{b}x{t}", examples=b, length=t) for b, t in shapes)
        return build

    return enter


# Which dimension is the batch: as many examples as words, a divisor, a multiple, one example, one word.
SHAPES = ((6, 6), (3, 6), (6, 3), (1, 6), (5, 1), (1, 1))


# Batches and losses


def lengths(b: int, t: int) -> Any:
    return torch.tensor([max(1, t - 2 * (i % 3)) for i in range(b)])


def mask(b: int, t: int) -> Any:
    return (torch.arange(t) < lengths(b, t)[:, None]).long()


def words(b: int, t: int) -> Any:
    """Few different words, so that they come several times in an example; 0 is padding."""
    return torch.randint(3, 12, (b, t)) * mask(b, t)


def text(b: int, t: int) -> Batch:
    return {"input_ids": words(b, t), "attention_mask": mask(b, t)}


def classes(b: int) -> Any:
    return torch.randint(0, CLASSES, (b,))


def targets(b: int, t: int) -> Any:
    return torch.randint(3, V, (b, t)).where(mask(b, t).bool(), -100)


def texts(b: int, t: int) -> Batch:
    return text(b, t) | {"labels": classes(b)}


def sequences(b: int, t: int) -> Batch:
    return text(b, t) | {"labels": targets(b, t)}


def outputs(model: Any, batch: Batch) -> Any:
    out = model(**{name: value for name, value in batch.items() if name != "labels"})
    return out if isinstance(out, torch.Tensor) else out.logits


def loss(model: Any, batch: Batch) -> Any:
    """Cross-entropy with a label for each example, or its mean over the words of the example."""
    logits, labels = outputs(model, batch), batch["labels"]
    if labels.dim() == 1:
        return fn.cross_entropy(logits, labels, reduction="none")
    logits = logits[:, -labels.shape[1] :]  # soft prompts come first
    each = fn.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return each.sum(1) / (labels != -100).sum(1).clamp(min=1)


# Hugging Face


def hugging(name: str, head: str, **settings: Any) -> Any:
    """A model of random weights, without dropout unless asked for."""
    import transformers

    transformers.logging.set_verbosity_error()
    family = getattr(transformers, f"{name}Config")
    return getattr(transformers, f"{name.removesuffix('Text')}{head}")(family(**settings))


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ENCODER = NO_DROPOUT | {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
    "num_labels": CLASSES,
}


def bert(head: str = "ForSequenceClassification", **settings: Any) -> Any:
    return hugging("Bert", head, **ENCODER | settings)


@case("bert", shapes=SHAPES)
def _(b: int, t: int) -> tuple[Any, ...]:
    return bert(), texts(b, t)


@case("bert-dropout", random=True)
def _(b: int, t: int) -> tuple[Any, ...]:
    rate = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
    return bert(**rate), texts(b, t)


@case("bert-eager")
def _(b: int, t: int) -> tuple[Any, ...]:
    return bert(attn_implementation="eager"), texts(b, t)


@case("bert-masked-lm")
def _(b: int, t: int) -> tuple[Any, ...]:
    return bert("ForMaskedLM"), sequences(b, t)


@case("bert-tags")
def _(b: int, t: int) -> tuple[Any, ...]:
    return bert("ForTokenClassification"), text(b, t) | {"labels": targets(b, t).clamp(max=CLASSES - 1)}


@case("bert-spans")
def _(b: int, t: int) -> tuple[Any, ...]:
    def spans(model: Any, batch: Batch) -> Any:
        out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        start, end = fn.log_softmax(out.start_logits, 1), fn.log_softmax(out.end_logits, 1)
        return -start.gather(1, batch["start"]).squeeze(1) - end.gather(1, batch["end"]).squeeze(1)

    start = torch.randint(0, t, (b, 1))
    return (
        bert("ForQuestionAnswering", num_labels=2),
        text(b, t) | {"start": start, "end": start},
        spans,
    )


@case("bert-frozen-embeddings")
def _(b: int, t: int) -> tuple[Any, ...]:
    model = bert()
    model.bert.embeddings.requires_grad_(False)
    return model, texts(b, t)


@case("bert-bitfit")
def _(b: int, t: int) -> tuple[Any, ...]:
    model = bert()
    for name, weight in model.named_parameters():
        weight.requires_grad_("bias" in name)
    return model, texts(b, t)


@case("bert-head-only")
def _(b: int, t: int) -> tuple[Any, ...]:
    model = bert()
    model.bert.requires_grad_(False)
    return model, texts(b, t)


@case("bert-all-trained-but-the-head")
def _(b: int, t: int) -> tuple[Any, ...]:
    model = bert()
    model.classifier.requires_grad_(False)
    return model, texts(b, t)


@case("minilm-mean-pooling")
def _(b: int, t: int) -> tuple[Any, ...]:
    def forward(net: Any, input_ids: Any, attention_mask: Any) -> Any:
        hidden = net.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        kept = attention_mask[:, :, None]
        return net.head((hidden * kept).sum(1) / kept.sum(1))

    body = bert("Model")  # its pooler is trained and used by no loss
    return Net(forward, body=body, head=nn.Linear(D, CLASSES)), texts(b, t)


@case("siamese")
def _(b: int, t: int) -> tuple[Any, ...]:
    def forward(net: Any, first: Any, second: Any) -> Any:
        one, two = (net.body(input_ids=ids).last_hidden_state[:, 0] for ids in (first, second))
        return net.head(torch.cat([one, two, (one - two).abs()], 1))

    net = Net(forward, body=bert("Model"), head=nn.Linear(3 * D, CLASSES))
    return net, {"first": words(b, t), "second": words(b, t + 2), "labels": classes(b)}


@case("multiple-choice")
def _(b: int, t: int) -> tuple[Any, ...]:
    labels = torch.randint(0, 2, (b,))
    return bert("ForMultipleChoice"), {"input_ids": torch.randint(3, 12, (b, 2, t)), "labels": labels}


JIT = ("`torch.jit",)
HUGGING: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "roberta": ("Roberta", "ForSequenceClassification", {"pad_token_id": 0}, ()),
    "electra": ("Electra", "ForSequenceClassification", {"embedding_size": 12}, ()),
    "electra-discriminator": ("Electra", "ForTokenClassification", {"num_labels": V}, ()),
    "albert": ("Albert", "ForSequenceClassification", {"embedding_size": 12}, ()),
    "albert-masked-lm": ("Albert", "ForMaskedLM", {"embedding_size": 12}, ()),
    "deberta-v2": (
        "DebertaV2",
        "ForSequenceClassification",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4},
        JIT,
    ),
    "mpnet": ("MPNet", "ForSequenceClassification", {}, ()),
    "modernbert": ("ModernBert", "ForMaskedLM", {"pad_token_id": 0, "local_attention": 4}, JIT),
    "convbert": ("ConvBert", "ForSequenceClassification", {"embedding_size": D}, ()),
}
DISTIL = {"vocab_size": V, "dim": D, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
DISTIL |= {"max_position_embeddings": 16, "num_labels": CLASSES}
for key in ("dropout", "attention_dropout", "seq_classif_dropout"):
    DISTIL |= {key: 0.0}


def encoder(family: str, head: str, settings: dict[str, Any]) -> Any:
    def build(b: int, t: int) -> tuple[Any, ...]:
        extra = {"classifier_dropout_prob": 0.0, "mlp_dropout": 0.0, "embedding_dropout": 0.0}
        model = hugging(family, head, **ENCODER | extra | settings)
        return model, texts(b, t) if "Sequence" in head else sequences(b, t)

    return build


for key, (family, head, settings, quiet) in HUGGING.items():
    case(key, quiet=quiet)(encoder(family, head, settings))


@case("distilbert")
def _(b: int, t: int) -> tuple[Any, ...]:
    return hugging("DistilBert", "ForSequenceClassification", **DISTIL), texts(b, t)


def gpt2(head: str = "LMHeadModel", **settings: Any) -> Any:
    sizes = {"vocab_size": V, "n_positions": 24, "n_embd": D, "n_layer": 2, "n_head": 2}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    ends = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, "num_labels": CLASSES}
    return hugging("GPT2", head, **sizes | rates | ends | settings)


@case("gpt2", shapes=SHAPES)
def _(b: int, t: int) -> tuple[Any, ...]:
    return gpt2(), sequences(b, t)


@case("gpt2-untied")
def _(b: int, t: int) -> tuple[Any, ...]:
    return gpt2(tie_word_embeddings=False), sequences(b, t)


@case("gpt2-dropout", random=True)
def _(b: int, t: int) -> tuple[Any, ...]:
    return gpt2(**dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.2)), sequences(b, t)


@case("gpt2-classifier")
def _(b: int, t: int) -> tuple[Any, ...]:
    return gpt2("ForSequenceClassification"), texts(b, t)


@case("gpt2-one-example-without-a-gradient")
def _(b: int, t: int) -> tuple[Any, ...]:
    batch = sequences(b, t)
    batch["labels"][2] = -100
    return gpt2(), batch


DECODER = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": 3}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 4}),
    "gemma": ("Gemma", {"head_dim": 4}),
    "gemma3": ("Gemma3Text", {"head_dim": 4, "sliding_window": 4}),
    "phi": ("Phi", {"num_key_value_heads": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0}),
    "gpt-neox": ("GPTNeoX", {"attention_dropout": 0.0, "hidden_dropout": 0.0}),
    "opt": ("OPT", {"ffn_dim": 24, "dropout": 0.0, "word_embed_proj_dim": D}),
    "bloom": ("Bloom", {"n_head": 2, "n_layer": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0}),
    "mamba": ("Mamba", {"state_size": 4, "conv_kernel": 3, "time_step_rank": 2}),
}


def decoder(family: str, settings: dict[str, Any]) -> Any:
    def build(b: int, t: int) -> tuple[Any, ...]:
        return hugging(family, "ForCausalLM", **DECODER | settings), sequences(b, t)

    return build


for key, (family, settings) in DECODERS.items():
    case(key)(decoder(family, settings))


@case("xlnet")
def _(b: int, t: int) -> tuple[Any, ...]:
    sizes = {"vocab_size": V, "d_model": D, "n_layer": 2, "n_head": 2, "d_inner": 24}
    model = hugging("XLNet", "LMHeadModel", dropout=0.0, summary_last_dropout=0.0, **sizes)
    return model, sequences(b, t)


@case("t5", shapes=SHAPES)
def _(b: int, t: int) -> tuple[Any, ...]:
    sizes = {"vocab_size": V, "d_model": D, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    ends = {"relative_attention_num_buckets": 8, "dropout_rate": 0.0, "decoder_start_token_id": 0}
    batch = text(b, t) | {"decoder_input_ids": words(b, t), "labels": targets(b, t)}
    return hugging("T5", "ForConditionalGeneration", **sizes | ends), batch


@case("t5-gated-untied")
def _(b: int, t: int) -> tuple[Any, ...]:
    sizes = {"vocab_size": V, "d_model": D, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    ends = {"dropout_rate": 0.0, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    batch = text(b, t) | {"decoder_input_ids": words(b, t - 2), "labels": targets(b, t - 2)}
    return hugging("T5", "ForConditionalGeneration", **sizes | ends), batch


SEQ2SEQ: dict[str, Any] = {"vocab_size": V, "d_model": D, "max_position_embeddings": 16}
SEQ2SEQ |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
for side in ("encoder", "decoder"):
    SEQ2SEQ |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 24}
for key in ("dropout", "attention_dropout", "activation_dropout"):
    SEQ2SEQ |= {key: 0.0}


@case("bart")
def _(b: int, t: int) -> tuple[Any, ...]:
    # Without words for the decoder it takes those of the encoder, moved on by one.
    return hugging("Bart", "ForConditionalGeneration", **SEQ2SEQ), sequences(b, t)


@case("marian")
def _(b: int, t: int) -> tuple[Any, ...]:
    batch = text(b, t) | {"decoder_input_ids": words(b, t - 1), "labels": targets(b, t - 1)}
    return hugging("Marian", "MTModel", **SEQ2SEQ), batch


# peft


def tuned(model: Any, kind: str, **settings: Any) -> Any:
    import peft

    return peft.get_peft_model(model, getattr(peft, kind)(**settings))


def soft(kind: str, **settings: Any) -> Any:
    return tuned(gpt2(), kind, task_type="CAUSAL_LM", num_virtual_tokens=3, **settings)


ATTENTION = {"r": 4, "target_modules": ["query", "value"], "task_type": "SEQ_CLS"}
CONV1D = {
    "r": 4,
    "target_modules": ["c_attn", "c_fc"],
    "fan_in_fan_out": True,
    "task_type": "CAUSAL_LM",
}


@case("lora-bert")
def _(b: int, t: int) -> tuple[Any, ...]:
    return tuned(bert(), "LoraConfig", **ATTENTION), texts(b, t)


@case("lora-bert-from-zero", shaken=False)
def _(b: int, t: int) -> tuple[Any, ...]:
    return tuned(bert(initializer_range=0.2), "LoraConfig", **ATTENTION), texts(b, t)


@case("lora-bert-dropout", random=True)
def _(b: int, t: int) -> tuple[Any, ...]:
    return tuned(bert(), "LoraConfig", lora_dropout=0.2, **ATTENTION), texts(b, t)


@case("lora-gpt2")
def _(b: int, t: int) -> tuple[Any, ...]:
    return tuned(gpt2(), "LoraConfig", **CONV1D), sequences(b, t)


@case("lora-gpt2-from-zero", shaken=False)
def _(b: int, t: int) -> tuple[Any, ...]:
    return tuned(gpt2(initializer_range=0.2), "LoraConfig", **CONV1D), sequences(b, t)


@case("lora-embedding")
def _(b: int, t: int) -> tuple[Any, ...]:
    model = tuned(bert(), "LoraConfig", **ATTENTION | {"target_modules": ["word_embeddings", "key"]})
    return model, texts(b, t)


@case("dora-bert")
def _(b: int, t: int) -> tuple[Any, ...]:
    return tuned(bert(), "LoraConfig", use_dora=True, **ATTENTION), texts(b, t)


@case("prompt-tuning", shapes=((3, 6), (1, 6), (3, 3)))
def _(b: int, t: int) -> tuple[Any, ...]:
    return soft("PromptTuningConfig"), sequences(b, t)


@case("p-tuning-mlp")
def _(b: int, t: int) -> tuple[Any, ...]:
    return soft("PromptEncoderConfig", encoder_hidden_size=12), sequences(b, t)


@case("p-tuning-lstm")
def _(b: int, t: int) -> tuple[Any, ...]:
    settings = {"encoder_reparameterization_type": "LSTM", "encoder_dropout": 0.0}
    return soft("PromptEncoderConfig", encoder_hidden_size=12, **settings), sequences(b, t)


@case("prefix-gpt2")
def _(b: int, t: int) -> tuple[Any, ...]:
    return soft("PrefixTuningConfig"), sequences(b, t)


@case("prefix-gpt2-projection")
def _(b: int, t: int) -> tuple[Any, ...]:
    return soft("PrefixTuningConfig", prefix_projection=True, encoder_hidden_size=12), sequences(b, t)


@case("prefix-bert")
def _(b: int, t: int) -> tuple[Any, ...]:
    model = tuned(bert(), "PrefixTuningConfig", task_type="SEQ_CLS", num_virtual_tokens=3)
    return model, texts(b, t)


@case("ia3-bert")
def _(b: int, t: int) -> tuple[Any, ...]:
    names = {
        "target_modules": ["key", "value", "output.dense"],
        "feedforward_modules": ["output.dense"],
    }
    return tuned(bert(), "IA3Config", task_type="SEQ_CLS", **names), texts(b, t)


# Layers of torch


class Net(nn.Module):
    """Parts by name, and how they are used."""

    def __init__(self, rule: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.rule = rule

    def forward(self, **batch: Any) -> Any:
        return self.rule(self, **batch)


def bare(*shape: int) -> Any:
    return nn.Parameter(torch.randn(shape))


def layers(rule: Callable[..., Any], **parts: Any) -> Callable[[int, int], tuple[Any, ...]]:
    """Words to vectors, `rule(net, x_BTD)` on them, and its mean over the words to classes."""

    def forward(net: Any, ids: Any) -> Any:
        return net.head(rule(net, net.words(ids)).mean(1))

    def build(b: int, t: int) -> tuple[Any, ...]:
        made = {name: part(b, t) for name, part in parts.items()}
        net = Net(forward, words=nn.Embedding(V, D), head=nn.Linear(D, CLASSES), **made)
        return net, {"ids": words(b, t), "labels": classes(b)}

    return build


def simple(
    name: str, rule: Callable[..., Any], shapes: Any = (), where: list[Case] = ZOO, **parts: Any
) -> None:
    case(name, where, shapes=shapes)(layers(rule, **parts))


def linear(b: int, t: int) -> Any:
    return nn.Linear(D, D)


def flat(x: Any) -> Any:
    return x.reshape(-1, x.shape[-1])


simple("linear", lambda n, x: n.f(x).tanh(), SHAPES, f=linear)
simple("linear-four-times", lambda n, x: n.f(n.f(n.f(n.f(x).tanh()).tanh()).relu()), f=linear)
simple(
    "linear-4d", lambda n, x: n.f(x.unflatten(-1, (2, 8))).flatten(-2), f=lambda b, t: nn.Linear(8, 8)
)
simple("linear-flattened", lambda n, x: n.f(flat(x)).tanh().view(x.shape), SHAPES, f=linear)
simple(
    "linear-time-flattened",
    lambda n, x: n.f(flat(x.mT)).mean(1, True).unflatten(0, (len(x), D)).mT,
    f=lambda b, t: nn.Linear(t, 4),
)
simple("linear-on-the-mean", lambda n, x: n.f(x.mean(1))[:, None], f=linear)
simple("linear-without-bias", lambda n, x: n.f(x).tanh(), f=lambda b, t: nn.Linear(D, D, bias=False))
simple("linear-over-time", lambda n, x: n.f(x.mT).mT, SHAPES, f=lambda b, t: nn.Linear(t, t))
simple("time-major", lambda n, x: n.f(x.transpose(0, 1)).tanh().transpose(0, 1), SHAPES, f=linear)
simple(
    "time-major-copied",
    lambda n, x: n.f(x.transpose(0, 1).contiguous()).transpose(0, 1),
    SHAPES,
    f=linear,
)
simple("word-by-word", lambda n, x: torch.stack([n.f(step) for step in x.unbind(1)], 1), f=linear)
simple("one-example-at-a-time", lambda n, x: torch.stack([n.f(row) for row in x]), f=linear)
simple("bilinear", lambda n, x: n.f(x, x.flip(1)), f=lambda b, t: nn.Bilinear(D, D, D))
simple("layer-norm", lambda n, x: n.f(x), f=lambda b, t: nn.LayerNorm(D))
simple("layer-norm-two-dimensions", lambda n, x: n.f(x), SHAPES, f=lambda b, t: nn.LayerNorm((t, D)))
simple("rms-norm", lambda n, x: n.f(x), f=lambda b, t: nn.RMSNorm(D))
simple(
    "instance-norm", lambda n, x: n.f(x.mT).mT.tanh(), f=lambda b, t: nn.InstanceNorm1d(D, affine=True)
)
simple("group-norm", lambda n, x: n.f(x.mT).mT.tanh(), f=lambda b, t: nn.GroupNorm(4, D))
simple("prelu", lambda n, x: n.f(x.mT).mT, f=lambda b, t: nn.PReLU(D))
simple("dropout-and-linear", lambda n, x: n.f(fn.dropout(x, 0.0)), f=linear)
simple("conv1d", lambda n, x: n.f(x.mT).mT.tanh(), SHAPES, f=lambda b, t: nn.Conv1d(D, D, 3, padding=1))
simple(
    "conv1d-strided",
    lambda n, x: n.f(x.mT).mT.tanh(),
    f=lambda b, t: nn.Conv1d(D, D, 3, stride=2, padding="valid"),
)
simple("conv1d-grouped", lambda n, x: n.f(x.mT).mT.tanh(), f=lambda b, t: nn.Conv1d(D, D, 3, groups=4))
simple(
    "conv1d-depthwise",
    lambda n, x: n.f(x.mT).mT.tanh(),
    f=lambda b, t: nn.Conv1d(D, D, 3, groups=D, bias=False),
)
simple(
    "conv1d-dilated",
    lambda n, x: n.f(x.mT).mT.tanh(),
    f=lambda b, t: nn.Conv1d(D, D, 3, dilation=2, padding="same"),
)
simple(
    "conv1d-circular",
    lambda n, x: n.f(x.mT).mT.tanh(),
    f=lambda b, t: nn.Conv1d(D, D, 3, padding=1, padding_mode="circular"),
)
simple(
    "conv1d-twice", lambda n, x: n.f(n.f(x.mT).tanh()).mT, f=lambda b, t: nn.Conv1d(D, D, 3, padding=1)
)
simple(
    "conv1d-transposed",
    lambda n, x: n.f(x.mT).mT.tanh(),
    f=lambda b, t: nn.ConvTranspose1d(D, D, 3, stride=2),
)
simple(
    "conv1d-one-example-at-a-time",
    lambda n, x: torch.stack([n.f(row.mT).mT for row in x]),
    f=lambda b, t: nn.Conv1d(D, D, 3),
)
simple(
    "weight-norm",
    lambda n, x: n.f(x).tanh(),
    f=lambda b, t: nn.utils.parametrizations.weight_norm(nn.Linear(D, D)),
)
simple(
    "orthogonal",
    lambda n, x: n.f(x).tanh(),
    f=lambda b, t: nn.utils.parametrizations.orthogonal(nn.Linear(D, D)),
)
case("weight-norm-by-hook", quiet=("`torch.nn.utils.weight_norm` is deprecated",))(
    layers(lambda n, x: n.f(x).tanh(), f=lambda b, t: nn.utils.weight_norm(nn.Linear(D, D)))
)


@case("textcnn")
def _(b: int, t: int) -> tuple[Any, ...]:
    def forward(net: Any, ids: Any) -> Any:
        x = net.words(ids).mT
        return net.head(torch.cat([conv(x).relu().amax(2) for conv in net.convs], 1))

    convs = nn.ModuleList(nn.Conv1d(D, 6, k) for k in (3, 4, 5))
    net = Net(
        forward, words=nn.Embedding(V, D, padding_idx=0), convs=convs, head=nn.Linear(18, CLASSES)
    )
    return net, {"ids": words(b, t), "labels": classes(b)}


@case("conv2d")
def _(b: int, t: int) -> tuple[Any, ...]:
    net = nn.Sequential(
        *(nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.GroupNorm(4, 8), nn.ReLU(inplace=True)),
        *(nn.Conv2d(8, 8, 3, groups=2, dilation=2, padding=(2, 1)), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.LazyLinear(12), nn.Tanh(), nn.Linear(12, CLASSES)),
    )
    batch = {"input": torch.randn(b, 1, 14, 14), "labels": classes(b)}
    net(batch["input"])
    return net, batch


@case("conv3d")
def _(b: int, t: int) -> tuple[Any, ...]:
    net = nn.Sequential(
        nn.Conv3d(2, 4, (2, 3, 3)), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 2 * 9, CLASSES)
    )
    return net, {"input": torch.randn(b, 2, 3, 5, 5), "labels": classes(b)}


def recurrent(kind: str, first: bool = True, begin: bool = False, **settings: Any) -> Any:
    """A language model; `begin` gives it a trained first state."""

    def forward(net: Any, ids: Any) -> Any:
        x = net.words(ids)
        state = ()
        if begin:
            states = [h[:, None].expand(-1, len(ids), -1).contiguous() for h in (net.h, net.c)]
            state = (tuple(states),) if kind == "LSTM" else (states[0],)
        x, _ = net.body(x if first else x.transpose(0, 1), *state)
        return net.head(x if first else x.transpose(0, 1))

    def build(b: int, t: int) -> tuple[Any, ...]:
        body = getattr(nn, kind)(D, 12, num_layers=2, batch_first=first, **settings)
        sides = 1 + body.bidirectional
        head = nn.Linear(sides * (body.proj_size or 12), V)
        states = {"h": bare(2 * sides, 12), "c": bare(2 * sides, 12)} if begin else {}
        net = Net(forward, words=nn.Embedding(V, D), body=body, head=head, **states)
        return net, {"ids": words(b, t), "labels": targets(b, t)}

    return build


case("lstm", shapes=SHAPES)(recurrent("LSTM"))
case("lstm-time-major", shapes=SHAPES)(recurrent("LSTM", first=False))
case("lstm-bidirectional")(recurrent("LSTM", bidirectional=True))
case("lstm-projection", quiet=("LSTM with projections is not supported with oneDNN",))(
    recurrent("LSTM", proj_size=5)
)
case("lstm-without-bias")(recurrent("LSTM", bias=False))
case("lstm-trained-first-state")(recurrent("LSTM", begin=True))
case("lstm-dropout", random=True)(recurrent("LSTM", dropout=0.3))
case("gru", shapes=SHAPES)(recurrent("GRU"))
case("gru-time-major")(recurrent("GRU", first=False))
case("gru-bidirectional")(recurrent("GRU", bidirectional=True, first=False))
case("gru-trained-first-state")(recurrent("GRU", begin=True))
case("rnn-tanh")(recurrent("RNN"))
case("rnn-relu")(recurrent("RNN", nonlinearity="relu", first=False))


def cells(net: Any, x: Any) -> Any:
    state, seen = None, []
    for step in x.unbind(1):
        state = net.f(step, state)
        seen.append(state[0] if isinstance(state, tuple) else state)
    return torch.stack(seen, 1)


simple("lstm-cells", cells, f=lambda b, t: nn.LSTMCell(D, D))
simple("gru-cells", cells, f=lambda b, t: nn.GRUCell(D, D))


def attend(net: Any, ids: Any, attention_mask: Any, other: Any) -> Any:
    x, y = net.words(ids), net.others(other) if net.cross else net.words(ids)
    hidden = None if net.cross else attention_mask == 0
    if not net.f.batch_first:
        x, y = x.transpose(0, 1), y.transpose(0, 1)
    x, _ = net.f(x, y, y, key_padding_mask=hidden)
    return net.head((x if net.f.batch_first else x.transpose(0, 1)).mean(1))


def attention(cross: bool, **settings: Any) -> Any:
    def build(b: int, t: int) -> tuple[Any, ...]:
        wide = settings.get("kdim", D)
        net = Net(
            attend,
            words=nn.Embedding(V, D),
            others=nn.Embedding(V, wide),
            f=nn.MultiheadAttention(D, 2, **settings),
            head=nn.Linear(D, CLASSES),
        )
        net.cross = cross
        batch = {"ids": words(b, t), "attention_mask": mask(b, t), "other": torch.randint(3, 9, (b, 4))}
        return net, batch | {"labels": classes(b)}

    return build


case("attention-self", shapes=SHAPES)(attention(False, batch_first=True))
case("attention-self-time-major", shapes=SHAPES)(attention(False))
case("attention-cross")(attention(True, batch_first=True))
case("attention-cross-time-major")(attention(True))
case("attention-cross-own-widths")(attention(True, kdim=10, vdim=10, batch_first=True))
case("attention-bias-of-keys")(attention(True, add_bias_kv=True, add_zero_attn=True))


def torch_layer(kind: Any, **settings: Any) -> Any:
    return lambda b, t: kind(D, 2, 24, 0.0, **settings)


simple(
    "encoder-layer", lambda n, x: n.f(x), f=torch_layer(nn.TransformerEncoderLayer, batch_first=True)
)
simple(
    "encoder-layer-time-major",
    lambda n, x: n.f(x.transpose(0, 1)).transpose(0, 1),
    f=torch_layer(nn.TransformerEncoderLayer, norm_first=True),
)
simple(
    "decoder-layer",
    lambda n, x: n.f(x, x.flip(1)),
    f=torch_layer(nn.TransformerDecoderLayer, batch_first=True),
)
simple(
    "decoder-layer-time-major",
    lambda n, x: n.f(x.transpose(0, 1), x[:, :4].transpose(0, 1)).transpose(0, 1),
    f=torch_layer(nn.TransformerDecoderLayer),
)


def looked_up(make: Callable[[], Any], where: list[Case], name: str) -> None:
    @case(name, where)
    def _(b: int, t: int) -> tuple[Any, ...]:
        net = Net(lambda n, ids: n.head(n.f(ids).mean(1)), f=make(), head=nn.Linear(D, CLASSES))
        return net, {"ids": words(b, t), "labels": classes(b)}


looked_up(lambda: nn.Embedding(V, D, padding_idx=0), ZOO, "embedding-padding")
looked_up(lambda: nn.Embedding(V, D, padding_idx=5), ZOO, "embedding-padding-inside")
looked_up(
    lambda: nn.Embedding.from_pretrained(torch.randn(V, D), freeze=False), ZOO, "embedding-pretrained"
)
looked_up(lambda: nn.Embedding(V, D, scale_grad_by_freq=True), REFUSED, "embedding-scaled-by-frequency")
looked_up(lambda: nn.Embedding(V, D, max_norm=0.5), REFUSED, "embedding-of-bounded-norm")


@case("embedding-sparse", EITHER)
def _(b: int, t: int) -> tuple[Any, ...]:
    f = nn.Embedding(V, D, sparse=True)
    net = Net(lambda n, ids: n.head(n.f(ids).mean(1)), f=f, head=nn.Linear(D, CLASSES))
    return net, {"ids": words(b, t), "labels": classes(b)}


for mode in ("sum", "mean", "max"):

    @case(f"embedding-bag-{mode}")
    def _(b: int, t: int, mode: str = mode) -> tuple[Any, ...]:
        f = nn.EmbeddingBag(V, D, mode=mode, padding_idx=0)
        net = Net(lambda n, ids: n.head(n.f(ids)), f=f, head=nn.Linear(D, CLASSES))
        return net, {"ids": words(b, t), "labels": classes(b)}


@case("embedding-tied-to-the-output")
def _(b: int, t: int) -> tuple[Any, ...]:
    net = Net(
        lambda n, ids: n.f(n.words(ids)).tanh() @ n.words.weight.t(),
        words=nn.Embedding(V, D),
        f=nn.Linear(D, D),
    )
    return net, {"ids": words(b, t), "labels": targets(b, t)}


# Bare parameters


class Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight = ctx.saved_tensors
        return grad @ weight, flat(grad).t() @ flat(x)


def added_in_place(net: Any, x: Any) -> Any:
    x = x * 2
    x += net.p
    return x.tanh()


def prompted(net: Any, x: Any) -> Any:
    return net.f(torch.cat([net.p.expand(len(x), -1, -1), x], 1)).tanh()


def crf(net: Any, x: Any) -> Any:
    """The sum over all paths of a chain, kept as vectors."""
    score, seen = x[:, 0], []
    for step in x.unbind(1):
        score = (score[:, :, None] + net.p).logsumexp(1) / 2 + step
        seen.append(score)
    return torch.stack(seen, 1)


def square(b: int, t: int) -> Any:
    return bare(D, D)


def vector(b: int, t: int) -> Any:
    return bare(D)


simple("bare-position", lambda n, x: (x + n.p).tanh(), SHAPES, p=lambda b, t: bare(1, t, D))
simple("bare-position-two-dimensions", lambda n, x: (x + n.p).tanh(), SHAPES, p=lambda b, t: bare(t, D))
simple(
    "bare-position-longer",
    lambda n, x: (x + n.p[: x.shape[1]]).tanh(),
    SHAPES,
    p=lambda b, t: bare(t + 4, D),
)
simple(
    "bare-position-time-major",
    lambda n, x: (x.transpose(0, 1) + n.p).tanh().transpose(0, 1),
    SHAPES,
    p=lambda b, t: bare(t, 1, D),
)
simple("bare-position-in-place", added_in_place, p=lambda b, t: bare(t, D))
simple("bare-scale", lambda n, x: (x * n.p).tanh(), SHAPES, p=vector)
simple("bare-number", lambda n, x: (x * n.p).tanh(), SHAPES, p=lambda b, t: bare())
simple("bare-scale-and-shift", lambda n, x: torch.addcmul(n.q, x, n.p).tanh(), p=vector, q=vector)
simple("bare-matrix", lambda n, x: (x @ n.p.t()).tanh(), SHAPES, p=square)
simple("bare-matrix-einsum", lambda n, x: torch.einsum("btd,de->bte", x, n.p).tanh(), SHAPES, p=square)
simple(
    "bare-matrix-einsum-heads",
    lambda n, x: torch.einsum("btd,hde->bthe", x, n.p).flatten(2).tanh(),
    p=lambda b, t: bare(2, D, 8),
)
simple("bare-matrix-attention", lambda n, x: (x @ n.p @ x.mT).softmax(-1) @ x, SHAPES, p=square)
simple("bare-matrix-functional", lambda n, x: fn.linear(x, n.p, n.q).tanh(), p=square, q=vector)
simple(
    "bare-matrix-sliced",
    lambda n, x: torch.cat([x @ n.p[:, :8], (x @ n.p[:, 8:]).tanh()], -1),
    p=square,
)
simple(
    "bare-matrix-bmm", lambda n, x: torch.bmm(x, n.p.expand(len(x), -1, -1)).tanh(), SHAPES, p=square
)
simple("bare-matrix-repeated", lambda n, x: x @ n.p.repeat(len(x), 1, 1), SHAPES, p=square)
simple(
    "bare-bilinear",
    lambda n, x: fn.bilinear(x, x.roll(1, 1), n.p, n.q),
    p=lambda b, t: bare(D, D, D),
    q=vector,
)
simple(
    "bare-kernel", lambda n, x: fn.conv1d(x.mT, n.p, padding=1).mT.tanh(), p=lambda b, t: bare(D, D, 3)
)
simple("bare-gate", lambda n, x: torch.where(x > 0, x, n.p), SHAPES, p=vector)
simple(
    "bare-mask-token", lambda n, x: x.masked_fill(x.detach() > 1, 0) + (x.detach() > 1) * n.p, p=vector
)
simple("bare-prompt", prompted, SHAPES, p=lambda b, t: bare(4, D), f=linear)
simple("bare-through-a-function", lambda n, x: Times.apply(x, n.p).tanh(), SHAPES, p=square)
simple(
    "bare-factors",
    lambda n, x: (x @ (n.p @ n.q)).tanh(),
    SHAPES,
    p=lambda b, t: bare(D, 3),
    q=lambda b, t: bare(3, D),
)
simple(
    "bare-through-a-layer",
    lambda n, x: x + n.f(n.p).tanh(),
    SHAPES,
    p=lambda b, t: bare(t, D),
    f=linear,
)
simple(
    "bare-through-a-layer-and-words",
    lambda n, x: n.f(x) * n.f(n.p).tanh(),
    SHAPES,
    p=lambda b, t: bare(t, D),
    f=linear,
)
simple("bare-normed", lambda n, x: (x @ fn.normalize(n.p, dim=0)).tanh(), p=square)
simple("bare-chain", crf, SHAPES, p=square)
simple("bare-scalar-of-all", lambda n, x: x * n.p.square().mean().sqrt(), p=square)
simple("bare-layer-norm", lambda n, x: fn.layer_norm(x, (D,), n.p, n.q), p=vector, q=vector)
simple("unused", lambda n, x: n.f(x), f=linear, p=square, q=linear)
simple(
    "frozen-in-part",
    lambda n, x: n.f(x).tanh() * n.p,
    f=linear,
    p=lambda b, t: bare(D).requires_grad_(False),
)


@case("bare-look-up", shapes=SHAPES)
def _(b: int, t: int) -> tuple[Any, ...]:
    net = Net(
        lambda n, ids: n.head((n.p[ids] + n.q[ids].tanh()).mean(1)),
        p=bare(V, D),
        q=bare(V, 1),
        head=nn.Linear(D, CLASSES),
    )
    return net, {"ids": words(b, t), "labels": classes(b)}


@case("bare-look-up-select-and-gather")
def _(b: int, t: int) -> tuple[Any, ...]:
    def forward(net: Any, ids: Any) -> Any:
        chosen = net.p.index_select(0, ids.flatten()).view(*ids.shape, D)
        return net.head(chosen.mean(1)) + net.q.gather(0, ids)[:, :CLASSES]

    return Net(forward, p=bare(V, D), q=bare(V, t), head=nn.Linear(D, CLASSES)), {
        "ids": words(b, t),
        "labels": classes(b),
    }


@case("everything-the-same-size")
def _(b: int, t: int) -> tuple[Any, ...]:
    b = 6
    net = Net(
        lambda n, x: n.g((n.f(x) + n.p).tanh().transpose(0, 1)).sum(0) * n.q,
        f=nn.Linear(b, b),
        g=nn.Linear(b, b),
        p=bare(b, b),
        q=bare(b),
    )
    return net, {"x": torch.randn(b, b, b), "labels": torch.randint(0, b, (b,))}


@case("penalty")
def _(b: int, t: int) -> tuple[Any, ...]:
    # Each example pays the whole penalty, so it is in every gradient.
    model, batch = layers(lambda n, x: n.f(x).tanh(), f=linear)(b, t)
    return model, batch, lambda model, batch: loss(model, batch) + 0.1 * model.f.weight.square().sum()


@case("losses-summed-word-by-word")
def _(b: int, t: int) -> tuple[Any, ...]:
    def summed(model: Any, batch: Batch) -> Any:
        each = fn.cross_entropy(
            flat(outputs(model, batch)), batch["labels"].flatten(), reduction="none"
        )
        return each.view(batch["labels"].shape).sum(1)

    return *tagger(b, t), summed


@case("losses-stacked")
def _(b: int, t: int) -> tuple[Any, ...]:
    def stacked(model: Any, batch: Batch) -> Any:
        pairs = zip(outputs(model, batch), batch["labels"], strict=True)
        return torch.stack([fn.cross_entropy(logits, labels) for logits, labels in pairs])

    return *tagger(b, t), stacked


@case("losses-one-forward-each")
def _(b: int, t: int) -> tuple[Any, ...]:
    def alone(model: Any, batch: Batch) -> Any:
        rows = (
            {name: value[i : i + 1] for name, value in batch.items()} for i in range(len(batch["ids"]))
        )
        return torch.cat([loss(model, row) for row in rows])

    return *tagger(b, t), alone


@case("losses-in-double")
def _(b: int, t: int) -> tuple[Any, ...]:
    model, batch = tagger(b, t)
    return model.double(), batch


def tagger(b: int, t: int) -> tuple[Any, ...]:
    net = Net(
        lambda n, ids: n.head(n.f(n.words(ids)).tanh()),
        words=nn.Embedding(V, D),
        f=nn.Linear(D, D),
        head=nn.Linear(D, V),
    )
    return net, {"ids": words(b, t), "labels": targets(b, t)}


# Exact or refused


def gathered(net: Any, x: Any) -> Any:
    """The layer sees the chosen words of all examples in a row, a different number of each."""
    chosen = x.detach()[..., 0] > 0
    y = torch.zeros_like(x)
    y[chosen] = net.f(x[chosen]).tanh()
    return x + y


def sorted_first(net: Any, x: Any) -> Any:
    order = x.detach().sum((1, 2)).argsort()
    return net.f(x[order]).tanh()[order.argsort()]


def checkpointed(net: Any, x: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda x: net.f(x).tanh(), x, use_reentrant=False)


simple("gathered", gathered, SHAPES, EITHER, f=linear)
simple("sorted", sorted_first, SHAPES, EITHER, f=linear)
simple("reversed", lambda n, x: n.f(x.flip(0)).tanh().flip(0), (), EITHER, f=linear)
simple("checkpointed", checkpointed, (), EITHER, f=linear)
simple(
    "words-then-examples",
    lambda n, x: n.f(flat(x.transpose(0, 1))).view(x.shape[1], len(x), D).transpose(0, 1),
    SHAPES,
    EITHER,
    f=linear,
)
simple("stacked-twice", lambda n, x: sum(n.f(torch.cat([x, x.tanh()])).chunk(2)), (), EITHER, f=linear)
simple("mapped", lambda n, x: torch.func.vmap(lambda row: n.f(row).tanh())(x), (), EITHER, f=linear)


@case("head-on-masked-words-only", EITHER)
def _(b: int, t: int) -> tuple[Any, ...]:
    def masked(model: Any, batch: Batch) -> Any:
        kept = batch["labels"] != -100
        each = fn.cross_entropy(
            model.head(model.f(model.words(batch["ids"])[kept]).tanh()),
            batch["labels"][kept],
            reduction="none",
        )
        rows = kept.nonzero()[:, 0]
        return torch.zeros(len(kept)).index_add(0, rows, each) / kept.sum(1)

    return *tagger(b, t), masked


@case("lstm-packed", EITHER)
def _(b: int, t: int) -> tuple[Any, ...]:
    def forward(net: Any, ids: Any, attention_mask: Any) -> Any:
        kept = attention_mask.sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(
            net.words(ids), kept, batch_first=True, enforce_sorted=False
        )
        return net.head(net.body(packed)[1][0][-1])

    net = Net(
        forward,
        words=nn.Embedding(V, D),
        body=nn.LSTM(D, 12, batch_first=True),
        head=nn.Linear(12, CLASSES),
    )
    return net, {"ids": words(b, t), "attention_mask": mask(b, t), "labels": classes(b)}


@case("embedding-bag-of-offsets", EITHER)
def _(b: int, t: int) -> tuple[Any, ...]:
    def forward(net: Any, ids: Any) -> Any:
        kept = ids != 0
        ends = kept.sum(1).cumsum(0)
        return net.head(net.f(ids[kept], torch.cat([ends.new_zeros(1), ends[:-1]])))

    net = Net(forward, f=nn.EmbeddingBag(V, D), head=nn.Linear(D, CLASSES))
    return net, {"ids": words(b, t), "labels": classes(b)}


@case("mixtral", EITHER)
def _(b: int, t: int) -> tuple[Any, ...]:
    return decoder("Mixtral", {"num_local_experts": 3, "num_experts_per_tok": 2})(b, t)


@case("mixtral-eager-experts", EITHER)
def _(b: int, t: int) -> tuple[Any, ...]:
    settings = {"num_local_experts": 3, "num_experts_per_tok": 2, "experts_implementation": "eager"}
    return decoder("Mixtral", settings)(b, t)


@case("gpt2-checkpointed")
def _(b: int, t: int) -> tuple[Any, ...]:
    model = gpt2()
    model.gradient_checkpointing_enable()
    return model, sequences(b, t)


# Refused


simple("batch-norm", lambda n, x: n.f(x.mT).mT.tanh(), (), REFUSED, f=lambda b, t: nn.BatchNorm1d(D))
simple(
    "sync-batch-norm", lambda n, x: n.f(x.mT).mT.tanh(), (), REFUSED, f=lambda b, t: nn.SyncBatchNorm(D)
)
simple(
    "batch-norm-functional",
    lambda n, x: fn.batch_norm(x.mT, None, None, n.p, n.q, training=True).mT.tanh(),
    (),
    REFUSED,
    p=vector,
    q=vector,
)
simple("mean-of-the-batch-taken-off", lambda n, x: n.f(x - x.mean(0)).tanh(), (), REFUSED, f=linear)
simple(
    "attention-over-examples",
    lambda n, x: n.f(x.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1))[0].transpose(0, 1),
    (),
    REFUSED,
    f=lambda b, t: nn.MultiheadAttention(D, 2, batch_first=True),
)


@case("contrastive", REFUSED)
def _(b: int, t: int) -> tuple[Any, ...]:
    def pairs(model: Any, batch: Batch) -> Any:
        one, two = (fn.normalize(model(ids=batch[name])) for name in ("first", "second"))
        return fn.cross_entropy(one @ two.t() / 0.1, torch.arange(len(one)), reduction="none")

    net = Net(
        lambda n, ids: n.f(n.words(ids)).tanh().mean(1), words=nn.Embedding(V, D), f=nn.Linear(D, D)
    )
    return net, {"first": words(b, t), "second": words(b, t)}, pairs


@case("loss-less-its-mean", REFUSED)
def _(b: int, t: int) -> tuple[Any, ...]:
    def centred(model: Any, batch: Batch) -> Any:
        each = loss(model, batch)
        return each - each.mean()

    return *tagger(b, t), centred


@case("loss-by-the-words-of-the-batch", HIDDEN)
def _(b: int, t: int) -> tuple[Any, ...]:
    def shared(model: Any, batch: Batch) -> Any:
        labels = batch["labels"]
        each = fn.cross_entropy(outputs(model, batch).mT, labels, reduction="none")
        return each.sum(1) / (labels != -100).sum()

    return *tagger(b, t), shared
