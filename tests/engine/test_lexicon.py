import json

from agentdiff.engine.families.lexicon import FILE, Lexicon

PIECES = ["", "get", "_", "wea", "ther", "(", "city", ")", " ", "Play", "list", "s", "7", "\n"]
LEXICON = Lexicon(["weather", "city", "playlist", "play", "list", "get"], PIECES)


def words_of(*tokens):
    return LEXICON.rows([PIECES.index(token) for token in tokens])


def test_every_piece_of_a_word_has_the_row_of_the_word():
    assert words_of("get", "_", "wea", "ther", "(", "city", ")") == [6, 0, 1, 1, 0, 2, 0]


def test_an_ending_s_comes_off_and_a_capital_begins_a_word():
    assert words_of("get", "Play", "list", "s") == [6, 3, 3, 3]
    assert words_of("get", "Play", "(") == [6, 4, 0]


def test_what_is_no_known_word_has_row_0():
    assert words_of("wea", " ", "7", "\n") == [0, 0, 0, 0]
    assert words_of() == []


def test_it_is_read_from_a_checkpoint_folder(tmp_path):
    tokenizer = {
        "model": {"vocab": {"get": 1, "Ġ": 2, "city": 3}},
        "added_tokens": [
            {"id": 0, "content": "<|pad|>", "special": True},
            {"id": 4, "content": '{"tool":"', "special": False},
        ],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / FILE).write_text("city\ntool\n")
    assert Lexicon.load(tmp_path).rows([1, 2, 3, 0, 4]) == [0, 0, 1, 0, 2]
