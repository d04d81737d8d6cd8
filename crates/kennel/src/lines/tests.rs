//! Tests of the inbox and the outbox.

use std::io;

use kennel_core::message::{MAX_ID, Message};

use kennel_core::engine::daemon::InputLine;

use super::*;

fn feed(inbox: &mut Inbox, bytes: &[u8]) {
    inbox.read_buffer().extend_from_slice(bytes);
}

fn lines(inbox: &mut Inbox) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| inbox.next_line().map(<[u8]>::to_vec)).collect()
}

#[test]
fn lines_are_the_same_wherever_the_bytes_were_cut() {
    let text = "{\"a\":\"€😀\"}\n\n{\"b\":1}\r\nlast";
    for cut in 0..=text.len() {
        let mut inbox = Inbox::default();
        feed(&mut inbox, &text.as_bytes()[..cut]);
        let mut all = lines(&mut inbox);
        feed(&mut inbox, &text.as_bytes()[cut..]);
        all.extend(lines(&mut inbox));
        let expected: Vec<&[u8]> = vec!["{\"a\":\"€😀\"}".as_bytes(), b"", b"{\"b\":1}\r"];
        assert_eq!(all, expected, "cut at {cut}");
        assert_eq!(inbox.rest().as_deref(), Some(&b"last"[..]));
    }
}

#[test]
fn what_was_said_is_the_same_whether_it_is_seen_or_taken() {
    let long = format!(
        r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#,
        "x".repeat(1 << 20)
    );
    for (before, behind) in [("", ""), ("{}\n", ""), ("", "{}\npart"), ("", "part")] {
        for part in [4096, CHUNK + 1, 3 * CHUNK, 2 << 20] {
            let all = format!("{before}{long}\n{behind}");
            let (mut inbox, mut taken_lines) = (Inbox::default(), String::new());
            let mut moved = 0;
            for bytes in all.as_bytes().chunks(part) {
                feed(&mut inbox, bytes);
                while let Some(input) = inbox.next_input() {
                    let line = input.line();
                    taken_lines.push_str(str::from_utf8(line.bytes()).unwrap());
                    taken_lines.push('\n');
                    let alone = Message::parse(line.bytes());
                    assert_eq!(Message::parse(line), alone, "{part}");
                    moved += usize::from(matches!(input, InputLine::Moved(..)));
                }
            }
            let whole = all.strip_suffix("part").unwrap_or(&all);
            assert!(taken_lines == whole, "{before:?} {behind:?} {part}");
            assert_eq!(inbox.unfinished(), &all.as_bytes()[whole.len()..]);
            let came_alone = behind.is_empty() && (before.is_empty() || part < 2 << 20);
            assert!(moved == 1 || !came_alone, "{before:?} {behind:?} {part}");
            assert!(inbox.bytes.capacity() <= MAX_RETAINED);
        }
    }
}

#[test]
fn room_taken_for_a_long_line_is_given_back() {
    let mut inbox = Inbox::default();
    feed(&mut inbox, &vec![b'x'; 8 << 20]);
    assert_eq!(inbox.next_line(), None);
    feed(&mut inbox, b"\nshort\n");
    assert_eq!(lines(&mut inbox).len(), 2);
    assert!(inbox.bytes.capacity() <= MAX_RETAINED);

    let mut outbox = Outbox::default();
    outbox.push(&vec![b'x'; 8 << 20]);
    outbox.flush(|bytes| Ok(bytes.len().min(65536))).unwrap();
    assert!(outbox.bytes.capacity() <= MAX_RETAINED);
}

#[test]
fn of_many_inboxes_each_has_no_more_memory_than_its_incomplete_line() {
    super::retain_nothing();
    let mut inbox = Inbox::default();
    feed(&mut inbox, &vec![b'x'; 200_000]);
    assert_eq!(inbox.next_line(), None);
    feed(&mut inbox, b"\nthe next one");
    assert_eq!(lines(&mut inbox).len(), 1);
    assert_eq!(inbox.memory(), "the next one".len());
    assert!(inbox.bytes.capacity() < 100);
}

#[test]
fn what_was_read_of_a_skipped_line_counts_though_it_is_skipped_once_more() {
    let mut inbox = Inbox::default();
    for part in [r#"{"params":""#, r#"x","id":7,"#, r#""method":"y"}"#] {
        feed(&mut inbox, part.as_bytes());
        inbox.skip_line();
    }
    feed(&mut inbox, b"\nnext\n");
    assert!(lines(&mut inbox).is_empty());
    let line = inbox.next_too_long(false).unwrap();
    assert_eq!(line.id.as_deref(), Some(&b"7"[..]));
    assert_eq!(lines(&mut inbox), [b"next"]);
}

#[test]
fn the_memory_of_a_taken_line_is_freed_though_the_next_one_is_not_taken_yet() {
    let mut inbox = Inbox::default();
    feed(
        &mut inbox,
        format!("{}\nthe next one\n", "x".repeat(300_000)).as_bytes(),
    );
    assert_eq!(inbox.next_line().map(<[u8]>::len), Some(300_000));
    inbox.compact();
    assert!(inbox.bytes.capacity() <= MAX_RETAINED);
    assert_eq!(lines(&mut inbox), [b"the next one"]);
}

#[test]
fn a_line_passed_on_is_the_same_whether_it_changes_hands_or_is_copied() {
    for length in [3, MAX_RETAINED, 1 << 20] {
        let line = "x".repeat(length);
        for (before, behind) in [("", ""), ("before\n", ""), ("", "behind\n"), ("", "part")] {
            for waiting in ["", "waits\n"] {
                let (mut inbox, mut outbox) = (Inbox::default(), Outbox::default());
                outbox.bytes.extend_from_slice(waiting.as_bytes());
                feed(&mut inbox, format!("{before}{line}\n{behind}").as_bytes());
                while inbox.next_line().is_some() {
                    outbox.push_last(&mut inbox);
                }
                let whole = behind.strip_suffix("part").unwrap_or(behind);
                let expected = format!("{waiting}{before}{line}\n{whole}");
                assert!(
                    outbox.bytes[outbox.sent..] == *expected.as_bytes(),
                    "{length} {before:?} {behind:?}"
                );
                feed(&mut inbox, b" and more\n");
                let more = format!("{} and more", &behind[whole.len()..]);
                assert_eq!(lines(&mut inbox), [more.as_bytes()]);
                outbox.flush(|bytes| Ok(bytes.len().min(65536))).unwrap();
                assert!(
                    outbox.bytes.capacity() <= MAX_RETAINED
                        && inbox.bytes.capacity() <= MAX_RETAINED
                );
            }
        }
    }
}

#[test]
fn a_line_that_was_sent_ahead_is_said_once_or_not_at_all() {
    let long = "x".repeat(2 * LARGE_LINE);
    let send_ahead = |taken: usize| {
        let (mut inbox, mut outbox) = (Inbox::default(), Outbox::default());
        let mut sent = Vec::new();
        feed(&mut inbox, long.as_bytes());
        assert_eq!(inbox.next_line(), None);
        outbox.send_ahead(&inbox, |bytes| {
            let count = bytes.len().min(taken - sent.len()).min(CHUNK);
            sent.extend_from_slice(&bytes[..count]);
            Ok(count)
        });
        assert_eq!(sent.len(), taken.min(long.len()));
        feed(&mut inbox, b"end\n");
        assert!(inbox.next_line().is_some());
        (inbox, outbox, sent)
    };
    let flushed = |outbox: &mut Outbox, mut sent: Vec<u8>| {
        let written = outbox.flush(|bytes| {
            sent.extend_from_slice(bytes);
            Ok(bytes.len())
        });
        written.unwrap();
        String::from_utf8(sent).unwrap()
    };
    for taken in [0, 1, LARGE_LINE, usize::MAX] {
        let (mut inbox, mut outbox, sent) = send_ahead(taken);
        outbox.push_last(&mut inbox);
        outbox.push(b"next");
        assert!(flushed(&mut outbox, sent) == format!("{long}end\nnext\n"));

        let (mut inbox, mut outbox, sent) = send_ahead(taken);
        let ahead = match sent.len() {
            0 => String::new(),
            count => format!("{}\u{18}\n", &long[..count]),
        };
        outbox.push(b"other");
        outbox.push_last(&mut inbox);
        assert!(flushed(&mut outbox, sent) == format!("{ahead}other\n{long}end\n"));
    }
}

#[test]
fn what_is_said_in_the_middle_of_a_line_comes_behind_it_unless_it_is_much() {
    let long = "x".repeat(2 * LARGE_LINE);
    let refusal = vec![b'r'; 1000];
    for refusals in [1, 100] {
        let (mut inbox, mut outbox) = (Inbox::default(), Outbox::default());
        let mut sent = Vec::new();
        feed(&mut inbox, long.as_bytes());
        assert_eq!(inbox.next_line(), None);
        let mut send = |bytes: &[u8]| {
            sent.extend_from_slice(bytes);
            Ok(bytes.len())
        };
        outbox.send_ahead(&inbox, &mut send);
        for _ in 0..refusals {
            outbox.push_after_partial_line(&refusal);
        }
        outbox.flush(&mut send).unwrap();
        assert!(!outbox.matches_queued_lines());
        feed(&mut inbox, b"end\n");
        assert!(inbox.next_line().is_some());
        outbox.push_last(&mut inbox);
        outbox.flush(&mut send).unwrap();
        let written = String::from_utf8(sent).unwrap();
        let behind = format!("{}\n", "r".repeat(1000)).repeat(refusals);
        match refusals {
            1 => assert!(written == format!("{long}end\n{behind}")),
            _ => assert!(written == format!("{long}\u{18}\n{behind}{long}end\n")),
        }
    }
}

#[test]
fn a_call_begins_with_its_method_and_ends_with_its_brace() {
    let text = "x".repeat(CHUNK);
    let begins_a_call = |inbox: &mut Inbox, part: &str| {
        feed(inbox, part.as_bytes());
        assert_eq!(inbox.next_line(), None);
        inbox.begins_a_call()
    };
    let mut inbox = Inbox::default();
    let begun = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\",\"params\":[\"{text}");
    assert!(begins_a_call(&mut inbox, &begun));
    assert!(begins_a_call(&mut inbox, "\"]"));
    // Some servers act without waiting for the newline.
    assert!(!begins_a_call(&mut inbox, "}"));
    assert!(!begins_a_call(&mut inbox, "\r"));
    feed(&mut inbox, b"\n");
    assert!(inbox.next_line().is_some());
    assert!(!inbox.begins_a_call());
    let answer = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[\"{text}");
    assert!(!begins_a_call(&mut inbox, &answer));
    let mut inbox = Inbox::default();
    assert!(!begins_a_call(&mut inbox, &format!("{begun}\"],,")));
}

#[test]
fn what_cannot_be_written_now_waits_in_order() {
    let mut outbox = Outbox::default();
    outbox.push(b"one");
    outbox.push(b"two");
    let mut written = Vec::new();
    let mut room = 5;
    outbox
        .flush(|bytes| {
            let count = bytes.len().min(room);
            room -= count;
            written.extend_from_slice(&bytes[..count]);
            if count == 0 {
                Err(io::ErrorKind::WouldBlock.into())
            } else {
                Ok(count)
            }
        })
        .unwrap();
    assert_eq!((written.as_slice(), outbox.len()), (&b"one\nt"[..], 3));
    outbox
        .flush(|bytes| {
            written.extend_from_slice(bytes);
            Ok(bytes.len())
        })
        .unwrap();
    assert_eq!(written, b"one\ntwo\n");
    assert!(outbox.is_empty());
}

#[test]
fn lines_that_are_too_long_are_told_of_in_turn_wherever_the_bytes_were_cut() {
    set_max_line(MIN_MAX_LINE);
    let long = "x".repeat(MIN_MAX_LINE + 1);
    let mut chance = kennel_testkit::Rng::seeded("lines that are too long");
    for _ in 0..kennel_testkit::count(50) {
        let (mut text, mut expected) = (Vec::new(), Vec::new());
        for id in 0..8 {
            let (line, output) = match chance.below(5) {
                0 => (
                    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{long}"}}"#),
                    Some(format!("too long: {id}")),
                ),
                1 => (
                    format!(r#"{{"params":["{long}"],"jsonrpc":"2.0","id":{id}}}"#),
                    Some(format!("too long: {id}")),
                ),
                2 => (format!("{long}\u{18}"), None),
                _ => (format!("short {id}"), Some(format!("short {id}"))),
            };
            text.extend_from_slice(line.as_bytes());
            text.push(b'\n');
            expected.extend(output);
        }
        let (mut inbox, mut taken_lines, mut rest) = (Inbox::default(), Vec::new(), &text[..]);
        while !rest.is_empty() {
            let most = [700, 70_000, 700_000][chance.below(3) as usize];
            let cut = rest.len().min(1 + chance.below(most) as usize);
            feed(&mut inbox, &rest[..cut]);
            rest = &rest[cut..];
            loop {
                while let Some(line) = inbox.next_line() {
                    taken_lines.push(String::from_utf8_lossy(line).into_owned());
                }
                let Some(line) = inbox.next_too_long(false) else {
                    break;
                };
                let id = line.id.unwrap_or_default();
                taken_lines.push(format!("too long: {}", String::from_utf8_lossy(&id)));
            }
            assert!(inbox.bytes.capacity() <= LARGE_BUFFER + CHUNK);
            if chance.below(3) == 0 {
                inbox = restored(&inbox);
            }
        }
        assert_eq!(taken_lines, expected);
    }
}

/// The inbox as a newer build restores it.
fn restored(inbox: &Inbox) -> Inbox {
    let (unfinished, skipped) = inbox.snapshot();
    let text = serde_json::to_string(&skipped).unwrap();
    Inbox::restored(unfinished.to_vec(), serde_json::from_str(&text).unwrap())
}

#[test]
fn lines_that_a_former_build_skipped_are_skipped_in_the_format_of_version_0_4() {
    let text = r#"{"unfinished":{"outline":{"next":"Colon","bom":0,"kept":"id","is_cut":false,"depth":0,"in_string":false,"escaped":false,"object":{"ids":[],"id_count":0,"has_method":false,"has_outcome":true},"is_array":false,"arrays":0,"in_element":false,"elements":{"kept":[],"id_bytes":0}},"why":{"Limit":9},"last":34,"is_told":false,"most_elements":18446744073709551615,"is_unknown":false},"ended":[{"id":[55],"is_answer":false,"why":"NoRoom","elements":[{"id":"1","is_answer":true}]}]}"#;
    let skipped = serde_json::from_str(text).unwrap();
    let mut inbox = Inbox::restored(b":8}\nnext\n".to_vec(), skipped);
    assert!(lines(&mut inbox).is_empty());
    let skipped: Vec<_> = std::iter::from_fn(|| inbox.next_too_long(false)).collect();
    let ids: Vec<_> = skipped.iter().map(|it| it.id.as_deref()).collect();
    assert_eq!(ids, [Some(&b"7"[..]), Some(b"8")]);
    assert_eq!(lines(&mut inbox), [b"next"]);
}

#[test]
fn a_line_that_has_ended_is_not_skipped_and_nor_is_the_one_behind_it() {
    let mut inbox = Inbox::default();
    feed(&mut inbox, b"{\"id\":1,\"result\":\"x");
    assert!(lines(&mut inbox).is_empty());
    feed(&mut inbox, b"\"}\nfirst\n");
    inbox.skip_line();
    feed(&mut inbox, b"second\n");
    let expected = [&b"{\"id\":1,\"result\":\"x\"}"[..], b"first", b"second"];
    assert_eq!(lines(&mut inbox), expected);
    // A line that has not ended is skipped.
    feed(&mut inbox, b"{\"id\":2,\"result\":\"x");
    inbox.skip_line();
    feed(&mut inbox, b"x\"}\nthird\n");
    assert!(lines(&mut inbox).is_empty());
    let line = inbox.next_too_long(false).unwrap();
    assert_eq!(line.id.as_deref(), Some(&b"2"[..]));
    assert_eq!(lines(&mut inbox), [b"third"]);
}

#[test]
fn the_id_of_a_line_that_is_too_long_is_found_wherever_it_was_cut_and_kept_if_it_is_short() {
    set_max_line(MIN_MAX_LINE);
    let long = "x".repeat(MIN_MAX_LINE);
    let skipped_id = |line: String, cut: usize| {
        let mut inbox = Inbox::default();
        feed(&mut inbox, &line.as_bytes()[..cut]);
        assert!(lines(&mut inbox).is_empty());
        feed(&mut inbox, &line.as_bytes()[cut..]);
        feed(&mut inbox, b"\n");
        assert!(lines(&mut inbox).is_empty());
        inbox.next_too_long(false).unwrap().id
    };
    // The id is at the end of the line, after a beginning that was scanned.
    let before = "x".repeat(CHUNK);
    let line = format!(r#"{{"a":"{before}","id":7,"params":"{long}"}}"#);
    assert_eq!(skipped_id(line, CHUNK + 1).as_deref(), Some(&b"7"[..]));
    let before = "x".repeat(MAX_ID);
    let line = format!(r#"{{"id":"{before}","params":"{long}"}}"#);
    assert_eq!(skipped_id(line, 10), None);
}

#[test]
fn the_rest_of_the_first_line_is_what_waits_up_to_its_newline() {
    let mut outbox = Outbox::default();
    assert_eq!(outbox.rest_of_line(), b"");
    outbox.push(b"first");
    outbox.push(b"second");
    let mut room = 2;
    let write = |bytes: &[u8]| match std::mem::take(&mut room) {
        0 => Err(io::ErrorKind::WouldBlock.into()),
        count => Ok(count.min(bytes.len())),
    };
    outbox.flush(write).unwrap();
    assert_eq!(outbox.rest_of_line(), b"rst\n");
}
