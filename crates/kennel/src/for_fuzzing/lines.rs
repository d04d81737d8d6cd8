//! Lines come out as they came in, wherever the bytes were cut; too long ones are told of once, in their place, and
//! are not held.
//!
//! The first three bytes are the longest line allowed, how to take lines, and the most bytes read at once. The rest is
//! what is read, with four marks in it: `\x01 n c` is `c`, `16 n` times; `\x02` ends what is read at once; `\x03` does
//! too, and the reader is told that there is no room for the line; `\x04 c` is `c`, whatever it is.
//!
//! All sizes are a thousandth of what they are in the program: so a few bytes reach what there takes megabytes.

use kennel_core::engine::daemon::InputLine;
use kennel_core::hello::ABORT_BYTE;
use kennel_core::message::{Line, MAX_ID, Message};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::lines::{self, InboxSizes, TooLong, max_line, set_any_max_line};

/// A thousandth of the sizes of the program.
#[derive(Debug, Default)]
struct SmallSizes;

impl InboxSizes for SmallSizes {
    const CHUNK: usize = 64;
    const SMALL_READ: usize = 4;
    const MAX_RETAINED: usize = 2 * Self::CHUNK;
    const LARGE_LINE: usize = 2 * Self::CHUNK;
    const LARGE_BUFFER: usize = 1024;
    const GROWTH_STEP: usize = 256;
    const MIN_MAX_LINE: usize = 256;
}

type Inbox = lines::Inbox<SmallSizes>;

const CHUNK: usize = SmallSizes::CHUNK;
const MAX_RETAINED: usize = SmallSizes::MAX_RETAINED;
const LARGE_BUFFER: usize = SmallSizes::LARGE_BUFFER;
const GROWTH_STEP: usize = SmallSizes::GROWTH_STEP;
const MIN_MAX_LINE: usize = SmallSizes::MIN_MAX_LINE;

/// What a reader may hold beside a line: the room in front, and what it makes room for at once.
const SLACK: usize = GROWTH_STEP + 4 * CHUNK;

/// Something that is read at once.
struct Piece {
    bytes: Vec<u8>,
    /// There is no room for the line it belongs to.
    no_room: bool,
}

/// What must come out.
#[derive(Debug)]
enum Expected {
    Line(Vec<u8>),
    /// At least `seen` bytes of it were there before it was skipped.
    TooLong {
        line: Vec<u8>,
        seen: usize,
        no_room: bool,
    },
}

/// What came out.
#[derive(Debug)]
enum Heard {
    Line(Vec<u8>),
    TooLong(TooLong),
}

pub(super) fn check(bytes: &[u8]) {
    let [limit, way, most, stream @ ..] = bytes else {
        return;
    };
    set_any_max_line(MIN_MAX_LINE + 16 * usize::from(*limit));
    let at_once = way & 4 != 0;
    let (mut inbox, mut model, mut heard) = (Inbox::default(), Model::default(), Vec::new());
    for piece in pieces(stream, usize::from(*most)) {
        let mut rest = &piece.bytes[..];
        loop {
            // As much as is read into the room there is.
            let room = inbox.read_buffer();
            let (now, later) = rest.split_at(rest.len().min(room.capacity() - room.len()));
            room.extend_from_slice(now);
            model.reads(now);
            rest = later;
            if piece.no_room && rest.is_empty() && inbox.len() > 0 {
                inbox.skip_line();
                model.no_room();
            }
            model.takes_lines();
            take(&mut inbox, &mut heard, *way, at_once);
            holds_little(&inbox);
            if rest.is_empty() {
                break;
            }
        }
    }
    if way & 8 == 0 {
        inbox.end();
        take(&mut inbox, &mut heard, *way, at_once);
    } else {
        let rest = inbox.rest();
        heard.extend(rest.map(Heard::Line));
        take(&mut inbox, &mut heard, *way, at_once);
    }
    model.ends();
    compare(&model.expected, heard, at_once);
}

fn pieces(stream: &[u8], most: usize) -> Vec<Piece> {
    let (mut pieces, mut bytes) = (Vec::new(), Vec::new());
    let mut stream = stream.iter().copied();
    while let Some(byte) = stream.next() {
        let mut ends = false;
        match byte {
            1 => {
                let (times, byte) = (stream.next().unwrap_or(0), stream.next().unwrap_or(b'x'));
                bytes.extend(std::iter::repeat_n(byte, 16 * usize::from(times)));
            }
            2 | 3 => ends = true,
            4 => bytes.extend(stream.next()),
            _ => bytes.push(byte),
        }
        if ends || most > 0 && bytes.len() >= most {
            let bytes = std::mem::take(&mut bytes);
            let no_room = byte == 3;
            pieces.push(Piece { bytes, no_room });
        }
    }
    let no_room = false;
    pieces.push(Piece { bytes, no_room });
    pieces
}

/// A reader that keeps everything.
#[derive(Default)]
struct Model {
    expected: Vec<Expected>,
    /// What came of lines that were not taken.
    unfinished: Vec<u8>,
    /// How much of the line that has not ended was there when it was skipped, and whether for want of room.
    skipped: Option<(usize, bool)>,
}

impl Model {
    fn reads(&mut self, bytes: &[u8]) {
        self.unfinished.extend_from_slice(bytes);
    }

    fn no_room(&mut self) {
        let has_ended = self.unfinished.contains(&b'\n');
        if !has_ended && self.skipped.is_none() {
            self.skipped = Some((self.unfinished.len(), true));
        }
    }

    fn takes_lines(&mut self) {
        while let Some(end) = self.unfinished.iter().position(|&byte| byte == b'\n') {
            let rest = self.unfinished.split_off(end + 1);
            let mut line = std::mem::replace(&mut self.unfinished, rest);
            line.pop();
            self.takes(line);
        }
        if self.unfinished.len() > max_line() {
            self.skipped.get_or_insert((max_line() + 1, false));
        }
    }

    fn takes(&mut self, line: Vec<u8>) {
        let is_long = line.len() > max_line();
        let skipped = self.skipped.take();
        let skipped = skipped.or(is_long.then_some((line.len(), false)));
        self.expected.push(match skipped {
            Some((seen, no_room)) => Expected::TooLong {
                line,
                seen,
                no_room,
            },
            None => Expected::Line(line),
        });
    }

    fn ends(&mut self) {
        let line = std::mem::take(&mut self.unfinished);
        if !line.is_empty() {
            self.takes(line);
        }
    }
}

/// Takes all that has come, one way or another.
fn take(inbox: &mut Inbox, heard: &mut Vec<Heard>, way: u8, at_once: bool) {
    loop {
        loop {
            let line = match way % 4 {
                0 => inbox.next_line().map(<[u8]>::to_vec),
                1 => inbox.next_message().map(read_alike),
                2 => inbox.next_input().map(|spoken| {
                    if let InputLine::Moved(owned, _) = &spoken {
                        assert!(owned.len() >= MAX_RETAINED, "it is not worth it");
                    }
                    read_alike(spoken.line())
                }),
                _ => inbox.next_line().map(<[u8]>::to_vec).inspect(|line| {
                    if let Some((bytes, start)) = inbox.take_last() {
                        assert_eq!(&bytes[start..bytes.len() - 1], line);
                    } else {
                        assert_eq!(inbox.last().split_last(), Some((&b'\n', &line[..])));
                    }
                }),
            };
            let Some(line) = line else {
                break;
            };
            heard.push(Heard::Line(line));
        }
        let Some(line) = inbox.next_too_long(at_once) else {
            return;
        };
        heard.push(Heard::TooLong(line));
    }
}

/// What was seen of a line while it came makes no difference to what it says.
fn read_alike(line: Line<'_>) -> Vec<u8> {
    assert_eq!(Message::parse(line), Message::parse(line.bytes()));
    line.bytes().to_vec()
}

fn holds_little(inbox: &Inbox) {
    assert!(inbox.len() <= max_line(), "it holds a line that is skipped");
    let (held, room) = (inbox.bytes.len(), inbox.bytes.capacity());
    assert!(held <= max_line() + SLACK, "it holds {held}");
    assert!(
        room <= LARGE_BUFFER.max(max_line()) + SLACK,
        "it keeps {room}"
    );
}

fn compare(expected: &[Expected], heard: Vec<Heard>, at_once: bool) {
    let is_void = |expected: &Expected| match expected {
        Expected::TooLong { line, .. } => line.last() == Some(&ABORT_BYTE),
        Expected::Line(_) => false,
    };
    // It was not said after all; but somebody may have been told before that was known.
    if at_once && expected.iter().any(is_void) {
        return;
    }
    let mut heard = heard.into_iter();
    let expected = expected.iter().filter(|expected| !is_void(expected));
    for expected in expected {
        match expected {
            Expected::Line(line) => match heard.next() {
                Some(Heard::Line(heard)) => assert_eq!(&heard, line),
                other => panic!("{other:?} instead of {expected:?}"),
            },
            Expected::TooLong {
                line,
                seen,
                no_room,
            } => match heard.next() {
                Some(Heard::TooLong(told)) => is_told_well(&told, line, *seen, *no_room),
                other => panic!("{other:?} instead of {expected:?}"),
            },
        }
    }
    let more = heard.next();
    assert!(more.is_none(), "{more:?} was not said");
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// Its id is any JSON: also a number that is out of range for `Value`.
#[derive(Deserialize)]
struct Refusal {
    error: Value,
}

fn is_told_well(told: &TooLong, line: &[u8], seen: usize, no_room: bool) {
    let refusal = String::from_utf8(told.refusal()).expect("an answer is text");
    let answer: Refusal = serde_json::from_str(&refusal).expect("an answer is JSON");
    assert_eq!(answer.error["data"]["reason"], "line_too_long");
    let limit = answer.error["data"].get("limit");
    assert_eq!(limit.is_none(), no_room, "it says the wrong reason");
    assert_eq!(
        told.replacement().is_some(),
        told.is_answer && told.id.is_some()
    );
    if let Some(id) = &told.id {
        assert!(id.len() <= MAX_ID, "such an id is not kept");
        assert!(line.windows(id.len()).any(|part| part == id));
    }
    // What a whole line says is known only of one that is JSON, all of it text.
    let text = str::from_utf8(line).ok();
    let Some(whole) = text.and_then(|text| serde_json::from_str::<Envelope<'_>>(text).ok()) else {
        return;
    };
    let offset = |value: &RawValue| value.get().as_ptr() as usize - line.as_ptr() as usize;
    let id = whole.id.map(|id| id.get().as_bytes());
    if let Some(told) = &told.id {
        assert_eq!(&told[..], id.unwrap_or(b"null"));
    }
    if told.is_answer {
        assert!(whole.result.is_some() || whole.error.is_some() || is_odd(line));
    }
    if is_odd(line) {
        return;
    }
    let answers = [whole.result, whole.error].into_iter().flatten();
    for value in answers {
        assert!(told.is_answer || offset(value) >= seen, "it is an answer");
    }
    let Some(id) = id else {
        return;
    };
    let digits = id.strip_prefix(b"-").unwrap_or(id);
    let is_integer = digits.iter().all(u8::is_ascii_digit);
    let is_object = line.trim_ascii_start().starts_with(b"{");
    if is_object && id.len() < MAX_ID && (is_integer || id.starts_with(b"\"")) {
        assert!(told.id.is_some(), "its id can be read");
    }
}

/// Whether a scanner may leave it to others to read: keys with escapes, deep nesting, numbers that do not end; and values
/// of which `Option` says that they are not there.
fn is_odd(line: &[u8]) -> bool {
    let opened = line.iter().filter(|byte| b"[{".contains(byte)).count();
    let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    let has_long_number = line
        .chunk_by(|a, b| is_part(a) && is_part(b))
        .any(|run| run.len() > 1000);
    let has_null = line.windows(4).any(|part| part == b"null");
    opened > 100 || has_long_number || has_null || line.contains(&b'\\')
}
