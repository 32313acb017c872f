#!/usr/bin/env python3
"""Makes what this folder holds, with Python's sentencepiece: two small models, and what Megatron's
tokenizers make of strange texts with them.

    make.py TEXT [FOLDER]      TEXT: some hundred kB of English, one sentence a line
    make.py --check [FOLDER]   only says whether the files are what sentencepiece gives today

unigram.model  its normaliser is a part of NFKC (the whole of it would be 240 kB)
bpe.model      bytes for unknown characters; no normaliser; every space is kept and none added
tricky.jsonl   texts, and their ids: with each model, "today" and "legacy" (see train/data/tokenizer.h)
*.idx, *.bin   tricky.jsonl as Megatron's preprocess_data.py --append-eod writes it
"""
import json, os, struct, sys, tempfile, unicodedata
import sentencepiece

EXTRA_TEXTS = {
    "marks_spelled": "a <s> b</s><unk> <pad><PAD> c",
    "legacy_spelled": "<CLS>one<SEP> two <EOD><MASK><EOD>three<BOS><EOS>",
    "marks_alone": "</s>",
    "half_marks": "<s </s <EOD <0x41> <0x4",
    "separator": "\u2581a\u2581\u2581b \u2581",
    "full_width": "ＡＢＣ　１２３！ ｶﾞｷﾞ ﬁﬂ ½ Ⅷ ㎏ ①",
    "tabs": "\tone\ttwo\t\tthree\t",
    "nul": "a\u0000b\u0000",
    "zero_width": "a\u200bb\u200dc\ufeffd\u2060e",
    "many_marks": "e\u0301\u0302\u0303\u0323 A\u030a \u0301",
    "family": "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f",
    "hangul_jamo": "\u1112\u1161\u11ab\u1100\u1173\u11af",
    "words": "And God said, Let there be light: and there was light.",
}


def rules():
    """A part of NFKC, as sentencepiece's rule file: code points, tab, code points."""
    lines = []
    for number in [*range(0xA0, 0x180), *range(0xFB00, 0xFB07), *range(0xFF01, 0xFFA0), 0x3000, 0x2167]:
        text = unicodedata.normalize("NFKC", chr(number))
        if text != chr(number):
            lines.append((f"{number:X}", " ".join(f"{ord(c):X}" for c in text)))
    for number in range(0xC0, 0x180):
        parts = unicodedata.normalize("NFD", chr(number))
        if len(parts) > 1:
            lines.append((" ".join(f"{ord(c):X}" for c in parts), f"{number:X}"))
    lines.append(("9", "20"))
    return "".join(f"{a}\t{b}\n" for a, b in lines)


def train(text_path, folder):
    with tempfile.TemporaryDirectory() as work:
        with open(os.path.join(work, "rules.tsv"), "w") as file:
            file.write(rules())
        with open(text_path) as file, open(os.path.join(work, "corpus.txt"), "w") as corpus:
            corpus.writelines(file.readlines()[:6000])
            corpus.write("naïve café résumé\n日本語 漢字\nпривет мир\nمرحبا\n🙂🚀\n12:34 5,678\n" * 40)
        common = dict(input=os.path.join(work, "corpus.txt"), num_threads=1, minloglevel=2)
        sentencepiece.SentencePieceTrainer.train(
            model_prefix=os.path.join(work, "unigram"), model_type="unigram", vocab_size=500,
            normalization_rule_tsv=os.path.join(work, "rules.tsv"), character_coverage=0.9995,
            user_defined_symbols=["<SEP>"], **common)
        sentencepiece.SentencePieceTrainer.train(
            model_prefix=os.path.join(work, "bpe"), model_type="bpe", vocab_size=600,
            byte_fallback=True, normalization_rule_name="identity", split_digits=True,
            remove_extra_whitespaces=False, add_dummy_prefix=False, pad_id=3,
            allow_whitespace_only_pieces=True, character_coverage=0.99, **common)
        for name in ("unigram", "bpe"):
            with open(os.path.join(work, name + ".model"), "rb") as file:
                data = file.read()
            # The work folder's name has no place in the model.
            write(os.path.join(folder, name + ".model"), data.replace(work.encode(), b"/" * len(work)))


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def piece_or(model, number, otherwise):
    return model.id_to_piece(number) if number >= 0 else otherwise


def legacy_specials(model):
    """Spelling to id, in the order of Megatron's older SentencePieceTokenizer; and the vocabulary's size."""
    ids = {model.id_to_piece(i): i for i in range(len(model))}
    names = ["<CLS>", "<SEP>", "<EOD>", "<MASK>", piece_or(model, model.pad_id(), "<PAD>"),
             piece_or(model, model.bos_id(), "<BOS>"), piece_or(model, model.eos_id(), "<EOS>")]
    for name in names:
        ids.setdefault(name, len(ids))
    return {name: ids[name] for name in names}, len(ids)


def legacy_ids(model, text):
    """Special tokens from left to right, and the pieces of what is between them."""
    specials, _ = legacy_specials(model)
    found = [(text.find(name), name) for name in specials if name in text]
    if not found:
        return model.encode(text)
    at = min(found, key=lambda pair: pair[0])[0]
    name = next(name for place, name in found if place == at)
    return model.encode(text[:at]) + [specials[name]] + legacy_ids(model, text[at + len(name):])


def variants(folder):
    """Name of the variant: its type, whether legacy, ids of a text, end of document, vocabulary size."""
    models = {name: sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, name + ".model"))
              for name in ("unigram", "bpe")}
    out = {}
    for name, model in models.items():
        specials, size = legacy_specials(model)
        out[name] = (model.encode, model.eos_id(), len(model))
        out[name + "_legacy"] = (lambda text, model=model: legacy_ids(model, text), specials["<EOD>"], size)
        out[name + "_llama2"] = (lambda text, model=model: [model.bos_id()] + model.encode(text),
                                 model.eos_id(), len(model))
    return out


def pair(documents):
    """The .idx and .bin of documents of one sequence each (or none), as uint16."""
    lengths = [len(document) for document in documents if document]
    offsets = [2 * sum(lengths[:i]) for i in range(len(lengths))]
    ends = [0]
    for document in documents:
        ends.append(ends[-1] + (len(document) > 0))
    index = (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(ends)) +
             struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(offsets)}q", *offsets) +
             struct.pack(f"<{len(ends)}q", *ends))
    return index, b"".join(struct.pack(f"<{len(document)}H", *document) for document in documents)


def outputs(folder):
    """File name to bytes, of all but the models."""
    with open(os.path.join(folder, "../bpe/tricky.jsonl")) as file:
        texts = {line["name"]: line["text"][:600] for line in map(json.loads, file)}
    texts.update(EXTRA_TEXTS)
    kinds, out = variants(folder), {}
    lines = [{"name": name, "text": text, **{kind: encode(text) for kind, (encode, _, _) in kinds.items()}}
             for name, text in texts.items()]
    out["tricky.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines).encode()
    sizes = {kind: {"vocab_size": size, "end_of_document": eod} for kind, (_, eod, size) in kinds.items()}
    out["info.json"] = (json.dumps({"sentencepiece": sentencepiece.__version__, "texts": len(lines), **sizes},
                                   indent=1) + "\n").encode()
    for kind, (_, eod, _) in kinds.items():
        documents = [line[kind] + [eod] if line[kind] else [] for line in lines]
        out[kind + ".idx"], out[kind + ".bin"] = pair(documents)
    return out


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    folder = sys.argv[2] if len(sys.argv) > 2 else here
    if sys.argv[1] == "--check":
        bad = []
        for name, data in outputs(folder).items():
            with open(os.path.join(folder, name), "rb") as file:
                bad += [name] if file.read() != data and name != "info.json" else []
        print(f"sentencepiece {sentencepiece.__version__}: {bad or 'the same'}")
        return bool(bad)
    train(sys.argv[1], folder)
    for name, data in outputs(folder).items():
        write(os.path.join(folder, name), data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
