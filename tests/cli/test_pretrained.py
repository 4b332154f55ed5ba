"""From a folder as transformers, timm and sentence-transformers save them to a proved file, by one command."""

import json

import numpy as np
import onnxruntime
import pytest
import torch

from lit_gelu.audit import audit
from lit_gelu.cli.main import main
from lit_gelu.errors import ModelFileError
from lit_gelu.export import OnnxPredictor
from lit_gelu.export.pretrained import open_pretrained

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = {"vocab_size": 60, "max_position_embeddings": 32, **SMALL}
IMAGE = {"image_size": 16, "patch_size": 8, **SMALL}
DETR = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "num_queries": 5}
CONVOLUTIONS = {"conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_feat_extract_layers": 2}
SOUND = {"vocab_size": 20, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, **CONVOLUTIONS, **SMALL}
T5 = {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(97, 123))]


def sentence_encoder(folder):
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    plain = folder.with_name("plain")
    transformers.BertModel(transformers.BertConfig(**TEXT)).save_pretrained(plain)
    folder.with_name("vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder.with_name("vocab.txt"))).save_pretrained(plain)
    parts = [modules.Transformer(str(plain)), modules.Pooling(SMALL["hidden_size"]), modules.Normalize()]
    return library.SentenceTransformer(modules=parts, device="cpu").save(str(folder))


def of(name, config, **options):
    """Return what saves a model of transformers with random weights."""
    return lambda folder: getattr(transformers, name)(getattr(transformers, config)(**options)).save_pretrained(folder)


def detr(folder):
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 8, 16], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    options = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
    config = transformers.DetrConfig(**DETR, **options, backbone_config=backbone, decoder_attention_heads=2)
    transformers.DetrForObjectDetection(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 64, "width": 96}}))


# By name: what makes the folder, the task, and the names and sizes of the file's inputs without the batch.
TOKENS = {"input_ids": ["sequence"], "attention_mask": ["sequence"], "token_type_ids": ["sequence"]}
BOTH = {"input_ids": ["sequence"], "attention_mask": ["sequence"], "decoder_input_ids": ["decoder_sequence"]}
PIXELS = {"pixel_values": [3, 16, 16]}
FOLDERS = {
    "vit": (of("ViTForImageClassification", "ViTConfig", **IMAGE), "image-classification", PIXELS),
    "classifier": (of("BertForSequenceClassification", "BertConfig", **TEXT), "text-classification", TOKENS),
    "sentences": (sentence_encoder, "feature-extraction", TOKENS),
    "detr": (detr, "object-detection", {"pixel_values": [3, "height", "width"]}),
    "t5": (of("T5Model", "T5Config", **T5), "feature-extraction", BOTH),
    "wav2vec2": (of("Wav2Vec2ForCTC", "Wav2Vec2Config", **SOUND), "asr-encoder", {"input_values": ["samples"]}),
}


@pytest.mark.parametrize("name", ["vit", *(pytest.param(name, marks=pytest.mark.full) for name in [*FOLDERS][1:])])
def test_a_folder_becomes_a_proved_file_by_one_command(tmp_path, name):
    save, task, inputs = FOLDERS[name]
    torch.manual_seed(0)
    save(tmp_path / name)
    output = tmp_path / "out"
    assert main(["export", str(tmp_path / name), "--task", task, "-o", str(output)]) == 0
    ports = OnnxPredictor(output / "model.onnx").ports
    assert {port: list(ports[port].shape[1:]) for port in ports} == inputs
    card = (output / "README.md").read_text()
    assert all(
        text in card
        for text in ("comparison passed", torch.__version__.partition("+")[0], onnxruntime.__version__, *inputs)
    )
    assert json.loads((output / "model.parity.json").read_text())["passed"]
    assert main(["parity", str(output / "model.onnx"), "--ckpt", str(tmp_path / name), "--task", task]) == 0


@pytest.mark.full
def test_sentences_are_embedded_as_the_library_does(tmp_path):
    sentence_encoder(tmp_path / "sentences")
    library = pytest.importorskip("sentence_transformers").SentenceTransformer(
        str(tmp_path / "sentences"), device="cpu"
    )
    output = tmp_path / "out"
    assert main(["export", str(tmp_path / "sentences"), "-o", str(output)]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(output)  # its files are beside the model's
    texts = ["a b c", "d e f g h i"]
    tokens = tokenizer(texts, padding=True, return_tensors="np")
    session = onnxruntime.InferenceSession(output / "model.onnx", providers=["CPUExecutionProvider"])
    feed = {value.name: tokens[value.name] for value in session.get_inputs()}
    [embedding] = session.run(["sentence_embedding"], feed)
    np.testing.assert_allclose(embedding, library.encode(texts), rtol=0, atol=1e-5)


def test_a_swap_on_the_way_says_what_it_costs(tmp_path, capsys):
    torch.manual_seed(0)
    FOLDERS["vit"][0](tmp_path / "vit")
    arguments = ["export", str(tmp_path / "vit"), "-o", str(tmp_path / "out"), "--no-check", "--swap"]
    assert main([*arguments, "activation:gelu=relu"]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "relu for gelu moves outputs" in card
    assert "| relu | 1 |" in card
    assert main([*arguments, "activation:gelu"]) == 2
    assert "WHERE=ACTIVATION" in capsys.readouterr().err


@pytest.mark.full
def test_weights_of_timm_by_the_name_of_its_architecture(tmp_path):
    timm = pytest.importorskip("timm")
    model = timm.create_model("test_vit")
    safetensors.save_file(model.state_dict(), tmp_path / "weights.safetensors")
    arguments = ["export", str(tmp_path / "weights.safetensors"), "--timm"]
    assert main([*arguments, "test_vit", "-o", str(tmp_path / "out"), "--no-check"]) == 0
    x = torch.randn(2, *model.pretrained_cfg["input_size"])
    expected = model.eval()(x).detach()
    torch.testing.assert_close(OnnxPredictor(tmp_path / "out" / "model.onnx")(x), expected, rtol=0, atol=1e-4)
    assert main([*arguments, "no_such_net"]) == 2
    assert main([*arguments, "test_resnet"]) == 2  # these are not its weights


@pytest.mark.full
def test_a_folder_of_timm_has_the_images_that_it_was_trained_on(tmp_path):
    timm = pytest.importorskip("timm")
    model = timm.create_model("resnet10t", in_chans=1, num_classes=3)
    timm.models.save_for_hf(model, tmp_path, model_args={"in_chans": 1, "num_classes": 3}, safe_serialization=True)
    assert [*open_pretrained(tmp_path).model.example_input_array["x"].shape] == [
        2,
        1,
        *model.pretrained_cfg["input_size"][1:],
    ]


def test_a_head_without_weights_is_refused(tmp_path):
    transformers.BertModel(transformers.BertConfig(**TEXT)).save_pretrained(tmp_path / "bert")
    with pytest.raises(ModelFileError, match=r"no weights for classifier"):
        open_pretrained(tmp_path / "bert", "text-classification")
    assert main(["export", str(tmp_path / "bert"), "--task", "no-such-task"]) == 2


def test_a_folder_is_audited_without_a_sample(tmp_path):
    torch.manual_seed(0)
    FOLDERS["vit"][0](tmp_path / "vit")
    assert audit(tmp_path / "vit", tmp_path / "vit").passed


def test_parts_of_a_folder_that_are_its_own_code_or_pickled_are_refused(tmp_path):
    for name in ("pytorch_model.bin", "other.safetensors"):
        (tmp_path / name).write_bytes(b"")
    for kind, reason in (("evil.Module", "evil"), ("sentence_transformers.models.Dense", "pickled")):
        (tmp_path / "modules.json").write_text(json.dumps([{"type": kind, "path": ""}]))
        with pytest.raises(ModelFileError, match=reason):
            open_pretrained(tmp_path)
