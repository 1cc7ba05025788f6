from fieldwatch.record.event_words import FOR_RULES, SHOWN_ELSEWHERE, event_text, event_title


def test_kinds_read_as_words():
    assert event_title("checkpoint_failed") == "checkpoint failed"
    assert event_title("rolled_back") == "rollback"
    assert event_title("anything") == "anything"
    assert not FOR_RULES & SHOWN_ELSEWHERE


def test_an_event_with_a_sentence_is_told_by_it():
    failed = {"kind": "checkpoint_failed", "step": 3, "reason": "disk full", "free_bytes": 0, "metrics": {}}
    assert event_text(failed) == "disk full"


def test_other_events_are_told_by_their_fields_without_what_is_empty():
    event = {
        "kind": "rolled_back",
        "step": 9,
        "seconds": 1.5,
        "to_step": 4,
        "terms": ["a", "b"],
        "path": "",
        "why": None,
    }
    assert event_text(event).split(", ") == ["to step 4", "terms a + b"]
    text = event_text({"kind": "x", "step": 0, "share": 0.123456, "kept": True, "by": {"a": 1}})
    assert text.split(", ") == ["share 0.1235", "kept yes", "by a: 1"]


def test_long_texts_are_cut():
    assert len(event_text({"kind": "x", "step": 0, "message": "y" * 999}, 100)) == 100
    assert len(event_text({"kind": "x", "step": 0, **{f"k{i}": "z" * 999 for i in range(9)}})) <= 240


def test_the_trial_checkpoint_tells_its_size():
    assert event_text({"kind": "preflight", "step": 0, "nbytes": 3 << 20, "took": 1.0}).startswith("3.0 MiB")


def test_damaged_fields_are_no_reason_to_fail():
    assert event_text({"kind": "checkpoint", "step": 0, "metrics": "?", "path": 3}) == "3"
    assert "refused" in event_text({"kind": "refusal", "step": 0, "terms": 7})
    assert event_text({"kind": "preflight", "step": 0, "nbytes": "?"}) == "nbytes ?"
