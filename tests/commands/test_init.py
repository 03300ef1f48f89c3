"""`secateur init --for … --model …`: task files that work as they are, and a sentence for what cannot be."""

import json
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from torch import nn

from secateur.commands.task_file import load_task
from secateur.commands.task_writing import KINDS
from tests.commands.test_first_steps import _in_a_folder, secateur  # noqa: F401

BRIEFLY = "--train 0.02 --finetune 0.02 --channels 50% --repair 0 --no-measure --json -o out".split()


def write(*args: str) -> str:
    code, out, errors = secateur("init", "my_task.py", *args)
    assert code == 0, errors
    assert "`secateur inspect my_task.py`, then `secateur prune my_task.py" in out
    text = Path("my_task.py").read_text()
    compile(text, "my_task.py", "exec")
    assert re.findall(r"# CHANGE (\d) of 3: ", text) == ["1", "2", "3"]
    assert max(map(len, text.splitlines())) <= 120
    return text


def prune_briefly(*options: str) -> None:
    code, out, errors = secateur("inspect", "my_task.py")
    assert code == 0, errors
    assert "groups can be cut" in out
    code, out, errors = secateur("prune", "my_task.py", *BRIEFLY, *options)
    assert code == 0, errors
    result = json.loads(out)
    assert result["size_after"]["parameters"] < 0.5 * result["size_before"]["parameters"]
    assert 0 <= result["after"] <= 1


@pytest.mark.parametrize("kind", ["text-classification", "language-model"])
def test_a_task_of_text_works_as_it_is(kind: str) -> None:
    pytest.importorskip("transformers")
    write("--for", kind)
    prune_briefly()


@pytest.mark.real
@pytest.mark.parametrize("kind", ["image-folder", "timm", "torchvision", "detection"])
def test_a_task_of_images_works_as_it_is(kind: str) -> None:
    pytest.importorskip(KINDS[kind], exc_type=ImportError)
    write("--for", kind)
    prune_briefly()


@pytest.mark.real
@pytest.mark.parametrize(
    "args",
    [
        ("--model", "timm:mobilenetv3_small_100"),
        ("--model", "torchvision:mobilenet_v2"),
        ("--model", "torchvision:ssdlite320_mobilenet_v3_large"),
        ("--model", "timm:test_vit", "--for", "image-folder"),
        ("--model", "torchvision:alexnet", "--for", "image-folder"),
    ],
)
def test_a_named_model_works_in_its_task(args: tuple[str, ...]) -> None:
    for library in ("timm", "torchvision"):
        pytest.importorskip(library, exc_type=ImportError)
    write(*args)
    code, out, errors = secateur("inspect", "my_task.py")
    assert code == 0, errors
    assert "groups can be cut" in out


@pytest.fixture
def bert_folder() -> Path:
    transformers = pytest.importorskip("transformers")
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] the film was not good bad".split()
    transformers.BertTokenizer(vocab={word: i for i, word in enumerate(words)}).save_pretrained("bert")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=24, **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained("bert")
    return Path("bert")


def test_a_folder_of_transformers_brings_its_model_and_tokenizer(bert_folder: Path) -> None:
    text = write("--model", "bert")
    assert 'AutoModelForSequenceClassification.from_pretrained("bert")' in text
    assert "max_length=24" in text
    assert "--train" not in text, "its weights are trained"
    task = load_task("my_task.py")
    assert len(next(iter(task.train_data()))["labels"]) == 16
    code, _, errors = secateur("prune", "my_task.py", *BRIEFLY[2:])
    assert code == 0, errors


@pytest.mark.parametrize(
    ("architecture", "code"),
    [
        ("LlamaForCausalLM", 'AutoModelForCausalLM.from_pretrained("folder", use_cache=False)'),
        ("GPT2LMHeadModel", 'AutoModelForCausalLM.from_pretrained("folder", use_cache=False)'),
        ("ViTForImageClassification", 'AutoModelForImageClassification.from_pretrained("folder")'),
    ],
)
def test_the_architecture_of_a_folder_says_what_it_is_for(architecture: str, code: str, libraries: None) -> None:
    write_config(architectures=[architecture], n_positions=48, image_size=[24, 32])
    text = write("--model", "folder")
    assert code in text
    assert "length: int = 48" in text or "SIZE = 32" in text


def write_config(**config: object) -> None:
    Path("folder").mkdir()
    Path("folder/config.json").write_text(json.dumps(config))


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What init asks of timm and torchvision, without them."""
    detection, others = ["maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn"], ["alexnet", "inception_v3", "resnet18"]
    models = SimpleNamespace(detection=detection)
    models.list_models = lambda module=None: (
        detection if module is detection else others if module is models else [*detection, *others, "s3d"]
    )
    sizes = {"inception_v3": (75, 75)}
    models.get_model_weights = lambda name: SimpleNamespace(
        DEFAULT=SimpleNamespace(meta={"min_size": sizes.get(name, (1, 1))})
    )
    known = {"resnet10t": nn.Flatten(), "resnet50": nn.AvgPool2d(60), "vit_tiny": nn.Linear(224, 1)}
    timm = {"is_model": known.__contains__, "list_models": lambda: known, "create_model": known.__getitem__}
    timm["get_pretrained_cfg_value"] = lambda name, key: {"input_size": (3, 224, 224)}[key]
    for name, members in (("timm", timm), ("torchvision", {"models": models}), ("transformers", {})):
        library = ModuleType(name)
        library.__spec__ = ModuleSpec(name, None)
        vars(library).update(members)
        monkeypatch.setitem(sys.modules, name, library)


@pytest.mark.parametrize("kind", KINDS)
def test_three_lines_are_marked_in_every_kind(kind: str, libraries: None) -> None:
    write("--for", kind)


@pytest.mark.parametrize(
    ("args", "codes"),
    [
        ("--model timm:resnet10t", ["(images, 32)"]),
        ("--model timm:resnet50", ['timm.create_model("resnet50", pretrained=False', "interpolate(images, 64)"]),
        ("--model timm:vit_tiny", ["interpolate(images, 224)"]),
        ("--model timm:vit_tiny --for image-folder", ["import timm", "ImageFolder", "SIZE = 224"]),
        ("--model torchvision:inception_v3", ['get_model("inception_v3"', "aux_logits=False", "(images, 75)"]),
        ("--model torchvision:retinanet_resnet50_fpn", ["weights_backbone=None, num_classes=4", "box_iou"]),
        ("--model torchvision:alexnet --for image-folder", ["SIZE = 32", 'get_model("alexnet", weights=None']),
    ],
)
def test_a_named_model_is_filled_in(args: str, codes: list[str], libraries: None) -> None:
    text = write(*args.split())
    assert [code for code in codes if code not in text] == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--for image-foldr", "Did you mean 'image-folder'?"),
        ("--model timm:resnet5", "timm has no model 'resnet5'; did you mean 'resnet50'?"),
        ("--model torchvision:resnet81", "torchvision has no model 'resnet81'; did you mean 'resnet18'?"),
        ("--model torchvision:s3d", "a task that init has no example for"),
        ("--model torchvision:maskrcnn_resnet50_fpn", "learns from more than boxes"),
        ("--model foldr", "There is no folder foldr; did you mean folder?"),
        ("--model resnet50", "There is no folder resnet50; give timm:NAME, torchvision:NAME, or a folder"),
        ("--model empty", "empty has no config.json; give a folder that save_pretrained wrote."),
        ("--model folder", "BertModel, which has several uses; add --for text-classification or --for language-model"),
        ("--model damaged", "cannot be read"),
        ("--model hostile", "cannot be read"),
        ("--for detection --model timm:resnet50", "write --for timm or --for image-folder, or leave --for out."),
        ("--for timm --model torchvision:resnet18", "--for timm has no use for torchvision:resnet18"),
    ],
)
def test_what_cannot_be_is_answered_in_a_sentence(args: str, message: str, libraries: None) -> None:
    write_config(architectures=["BertModel"])
    code_as_size = json.dumps({"architectures": ["ViTForImageClassification"], "image_size": ["exit()"]})
    files = {"empty/else.json": "{}", "damaged/config.json": "[1]", "hostile/config.json": code_as_size}
    for name, text in files.items():
        Path(name).parent.mkdir()
        Path(name).write_text(text)
    code, _, errors = secateur("init", *args.split())
    assert code == 2
    assert message in errors
    assert not Path("task.py").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            "--for detection",
            "--for detection needs torchvision, which is not installed; run `pip install torchvision`.",
        ),
        ("--model timm:resnet50", "needs timm, which is not installed; run `pip install timm`."),
    ],
)
def test_a_missing_package_is_named(args: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secateur.commands.task_models.find_spec", lambda package: None)
    code, _, errors = secateur("init", *args.split())
    assert code == 2
    assert message in errors


def test_a_task_does_not_hide_the_package_that_it_imports(libraries: None) -> None:
    code, _, errors = secateur("init", "timm.py", "--for", "timm")
    assert code == 2
    assert "timm.py would hide timm" in errors
    assert not Path("timm.py").exists()


def test_the_kinds_are_on_the_first_screen_of_the_help() -> None:
    _, out, _ = secateur("init", "--help")
    shown = " ".join(" ".join(out.splitlines()[:24]).replace("│", " ").split())
    assert [kind for kind in KINDS if kind not in shown] == []
