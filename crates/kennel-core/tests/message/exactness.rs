//! What holds for every line (rule 11).

use kennel_core::message::{Message, Outcome, splice_id};
use proptest::prelude::{Strategy, any};
use proptest::{collection, prop_assert, prop_assert_eq};
use serde_json::Value;

use crate::chance::holds;
use crate::lines::{id, message};
use crate::odd;

#[test]
fn any_bytes_are_judged_without_a_panic() {
    let bytes = collection::vec(any::<u8>(), 0..200);
    holds("bytes", bytes, |bytes| {
        let _ = Message::parse(&bytes);
        Ok(())
    });
    // Nearly right lines go further.
    let nearly = (message(), any::<u16>(), any::<u8>(), any::<bool>());
    holds("nearly", nearly, |(line, place, byte, cut)| {
        let mut bytes = line.into_bytes();
        let place = usize::from(place) % bytes.len();
        match cut {
            true => bytes.truncate(place),
            false => bytes[place] = byte,
        }
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert!(serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok());
            prop_assert!(!bytes.contains(&b'\n'));
            check_parts(&bytes, &message)?;
        }
        Ok(())
    });
}

#[test]
fn every_well_formed_line_is_understood_as_its_values_say() {
    holds("understood", message(), |line| {
        let value: Value = serde_json::from_str(&line).expect("JSON");
        let message = Message::parse(line.as_bytes()).expect("well-formed");
        check_parts(line.as_bytes(), &message)?;
        let meant = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON");

        let id = message.id().map(|id| meant(id.raw()));
        prop_assert_eq!(id.as_ref(), value.get("id"));
        let (method, params, result, error) = match message {
            Message::Request(request) => (Some(request.method), request.params, None, None),
            Message::Notification(notification) => {
                prop_assert_eq!(value.get("id"), None);
                (Some(notification.method), notification.params, None, None)
            }
            Message::Response(response) => match response.outcome {
                Outcome::Result(result) => (None, None, Some(result), None),
                Outcome::Error(error) => (None, None, None, Some(error)),
            },
            Message::Batch(_) => panic!("a batch"),
        };
        let method = method.map(|method| Value::from(method.name().into_owned()));
        prop_assert_eq!(method.as_ref(), value.get("method"));
        for (part, key) in [(params, "params"), (result, "result"), (error, "error")] {
            let part = part.map(|part| meant(part.bytes()));
            prop_assert_eq!(part.as_ref(), value.get(key));
        }
        Ok(())
    });
}

#[test]
fn rule_11_a_splice_changes_the_id_and_not_one_byte_more() {
    let cases = (message().prop_filter("it has an id", has_id), id());
    holds("splice", cases, |(line, new_id)| {
        let id = Message::parse(line.as_bytes())
            .expect("well-formed")
            .id()
            .expect("an id");
        let spliced = splice_id(line.as_bytes(), &id, new_id.as_bytes());

        let place = id.part().range();
        prop_assert_eq!(&spliced[..place.start], &line.as_bytes()[..place.start]);
        let behind = place.start + new_id.len();
        prop_assert_eq!(&spliced[place.start..behind], new_id.as_bytes());
        prop_assert_eq!(&spliced[behind..], &line.as_bytes()[place.end..]);

        let mut expected: Value = serde_json::from_str(&line).expect("JSON");
        expected["id"] = serde_json::from_str(&new_id).expect("JSON");
        prop_assert_eq!(
            serde_json::from_slice::<Value>(&spliced).expect("JSON"),
            expected
        );

        let new = Message::parse(&spliced)
            .expect("well-formed")
            .id()
            .expect("an id");
        prop_assert_eq!(splice_id(&spliced, &new, id.raw()), line.as_bytes());
        Ok(())
    });
}

#[test]
fn rule_11_odd_but_legal_lines_are_understood_and_change_in_their_id_alone() {
    for line in odd::requests("tools/call").iter().chain(&odd::answers()) {
        let what = line.what;
        for (old, new) in [("7", r#""a longer one""#), (r#""\u0037\/""#, "1")] {
            let text = line.with_id(old);
            let message = Message::parse(text.as_bytes());
            let message = message.unwrap_or_else(|why| panic!("{what}: {why}"));
            check_parts(text.as_bytes(), &message).expect(what);
            let id = message.id().expect(what);
            assert_eq!(id.raw(), old.as_bytes(), "{what}");
            let spliced = splice_id(text.as_bytes(), &id, new.as_bytes());
            assert!(spliced == line.with_id(new).into_bytes(), "{what}");
        }
    }
}

#[test]
fn rule_11_a_batch_is_its_members_each_where_it_stands() {
    let cases = collection::vec(message(), 1..5);
    holds("batch", cases, |lines| {
        let line = format!("[{}]", lines.join(","));
        let Message::Batch(batch) = Message::parse(line.as_bytes()).expect("well-formed") else {
            panic!("a batch")
        };
        prop_assert_eq!(batch.members.len(), lines.len());
        for (member, alone) in batch.members.iter().zip(&lines) {
            prop_assert_eq!(member.whole.bytes(), alone.trim().as_bytes());
            prop_assert_eq!(&line.as_bytes()[member.whole.range()], member.whole.bytes());
            check_parts(line.as_bytes(), &member.message)?;
            let alone = Message::parse(alone.as_bytes()).expect("well-formed");
            prop_assert_eq!(
                member.message.id().map(|id| id.key()),
                alone.id().map(|id| id.key())
            );
        }
        Ok(())
    });
}

/// Each part is what stands in its place.
fn check_parts(line: &[u8], message: &Message<'_>) -> proptest::test_runner::TestCaseResult {
    let mut parts: Vec<_> = message.id().map(|id| id.part()).into_iter().collect();
    match message {
        Message::Request(request) => {
            parts.push(request.method.part());
            parts.extend(request.params);
        }
        Message::Notification(notification) => {
            parts.push(notification.method.part());
            parts.extend(notification.params);
        }
        Message::Response(response) => match response.outcome {
            Outcome::Result(part) | Outcome::Error(part) => parts.push(part),
        },
        Message::Batch(batch) => {
            for member in &batch.members {
                check_parts(line, &member.message)?;
            }
        }
    }
    for part in parts {
        prop_assert_eq!(&line[part.range()], part.bytes());
    }
    Ok(())
}

fn has_id(line: &String) -> bool {
    Message::parse(line.as_bytes()).is_ok_and(|message| message.id().is_some())
}
