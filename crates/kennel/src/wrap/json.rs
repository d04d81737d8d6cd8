//! JSON as people write it in configurations, with comments and trailing commas. `jsonc-parser` reads it into values
//! with their positions, so that all other bytes can stay.

use std::collections::HashSet;
use std::ops::Range;

use jsonc_parser::ast::{ObjectProp, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::errors::{ParseError, ParseErrorKind};
use jsonc_parser::tokens::Token;
use jsonc_parser::{CollectOptions, ParseOptions, Scanner, ScannerOptions, parse_to_ast};

use super::entry::Unreadable;

/// Accepts comments and trailing commas, and nothing else that JSON does not have.
const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// The same for its scanner.
const SCANNER_OPTIONS: ScannerOptions = ScannerOptions {
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Maximum number of keys and values of a document. Each takes about a hundred bytes of memory. A `.claude.json` of 16 MB,
/// with the prompts of years, has some hundred thousand.
const MAX_VALUES: usize = 2_000_000;

/// Reads a document without a byte order mark. The parser limits how deeply it may be nested.
pub(crate) fn parse(text: &str) -> Result<Value<'_>, Unreadable> {
    check_tokens(text)?;
    let collect = CollectOptions::default();
    let parsed = parse_to_ast(text, &collect, &OPTIONS).map_err(|error| refusal(text, &error))?;
    let value = parsed.value;
    let value = value.ok_or_else(|| Unreadable::at(text, text.len(), "expected a value"))?;
    refuse_second_keys(text, &value)?;
    Ok(value)
}

/// The value of this key, if `value` is an object. Keys are unique: [`parse`] refuses duplicates.
pub(crate) fn get<'v>(value: &'v Value<'v>, key: &str) -> Option<&'v Value<'v>> {
    Some(&value.as_object()?.get(key)?.value)
}

/// The members of an object; empty for everything else.
pub(crate) fn members<'v>(value: Option<&'v Value<'v>>) -> &'v [ObjectProp<'v>] {
    let object = value.and_then(Value::as_object);
    object.map_or(&[], |object| &object.properties)
}

/// The range of a value or a key in the text.
pub(crate) fn span(node: &impl Ranged) -> Range<usize> {
    node.start()..node.end()
}

/// Refuses what the parser accepts and apps may not: other white space, and control characters and half surrogates in
/// strings. Refuses too many values, before the parser takes memory for each. Other errors are left to the parser.
fn check_tokens(text: &str) -> Result<(), Unreadable> {
    let mut scanner = Scanner::new(text, &SCANNER_OPTIONS);
    let (mut end, mut values) = (0, 0);
    while let Ok(token) = scanner.scan() {
        let span = match token {
            Some(_) => scanner.token_start()..scanner.token_end(),
            None => text.len()..text.len(),
        };
        if let Some(at) = text[end..span.start].find(|c| !" \t\r\n".contains(c)) {
            let what = "white space that JSON does not have";
            return Err(Unreadable::at(text, end + at, what));
        }
        end = span.end;
        match token {
            None => break,
            Some(Token::String(_))
                if serde_json::from_str::<String>(&text[span.clone()]).is_err() =>
            {
                let what =
                    "a string with a line break or another character that JSON does not have";
                return Err(Unreadable::at(text, span.start, what));
            }
            Some(
                Token::Comma
                | Token::Colon
                | Token::CloseBrace
                | Token::CloseBracket
                | Token::CommentLine(_)
                | Token::CommentBlock(_),
            ) => {}
            Some(_) => values += 1,
        }
        if values > MAX_VALUES {
            let what =
                format!("more than {MAX_VALUES} keys and values: too many for a configuration");
            return Err(Unreadable::at(text, span.start, what));
        }
    }
    Ok(())
}

/// Refuses two keys with one name: some readers take the first, others the last.
fn refuse_second_keys(text: &str, value: &Value<'_>) -> Result<(), Unreadable> {
    if let Value::Array(array) = value {
        return array
            .elements
            .iter()
            .try_for_each(|value| refuse_second_keys(text, value));
    }
    let mut keys = HashSet::new();
    for member in members(Some(value)) {
        if !keys.insert(member.name.as_str()) {
            let what = "a duplicate key: readers may differ in what they read";
            return Err(Unreadable::at(text, member.name.start(), what));
        }
        refuse_second_keys(text, &member.value)?;
    }
    Ok(())
}

fn refusal(text: &str, error: &ParseError) -> Unreadable {
    let range = error.range();
    let at = match error.kind() {
        ParseErrorKind::UnterminatedObject | ParseErrorKind::UnterminatedArray => range.end,
        // The next value is at the place of the expected comma.
        ParseErrorKind::ExpectedComma => text.len() - text[range.start..].trim_start().len(),
        _ => range.start,
    };
    let what = error.kind().to_string();
    let (first, rest) = what.split_at(what.len().min(1));
    Unreadable::at(text, at, first.to_lowercase() + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_trailing_commas_are_read_over() {
        let text =
            "// first\r\n{ /* a */ \"a\": [1, \"x\\u00e9\", ], // b\n\"b\": {\"c\": null,},\n}\n";
        let node = parse(text).unwrap();
        let list = get(&node, "a").and_then(Value::as_array).unwrap();
        let string = list.elements[1].as_string_lit().unwrap();
        assert_eq!(&text[span(string)], "\"x\\u00e9\"");
        assert_eq!(string.value, "xé");
        assert!(
            get(get(&node, "b").unwrap(), "c")
                .unwrap()
                .as_null_keyword()
                .is_some()
        );
    }

    #[test]
    fn invalid_json_is_reported_with_its_line() {
        for (text, line, column) in [
            ("", 1, 1),
            ("{", 1, 2),
            ("{\n  \"a\": 1\n  \"b\": 2\n}", 3, 3),
            ("{\"a\": tru}", 1, 7),
            ("{\"a\": \"x\n\"}", 1, 7),
            ("{'a': 1}", 1, 2),
            ("{\"a\": [1 2]}", 1, 10),
            ("{} x", 1, 4),
            ("{ /* ", 1, 3),
            ("{\"a\": \"\\x\"}", 1, 8),
            ("{,}", 1, 2),
            ("[1,,2]", 1, 4),
            ("[1,\u{a0}2]", 1, 4),
            ("{\"a\":\u{c}1}", 1, 6),
            ("[\"\\ud800\"]", 1, 3),
            ("{a: 1}", 1, 2),
            ("[01]", 1, 3),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(
                (error.line, error.column),
                (line, column),
                "{text:?}: {error}"
            );
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn an_object_with_two_members_of_one_name_is_refused() {
        for text in [
            r#"{"a": "1", "a": "2"}"#,
            r#"{"b": {"a": 1, "\u0061": 2}}"#,
            r#"[{"a": [], "c": 1, "a": []}]"#,
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("duplicate key"), "{text}: {error}");
        }
        assert!(parse(r#"{"a": {"a": 1}, "b": {"a": 1}}"#).is_ok());
    }
}
