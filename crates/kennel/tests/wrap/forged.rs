//! Backups that `wrap` did not write: `unwrap` restores nothing but what it shows.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::stage::Person;

const FILE: &str = "home/.cursor/mcp.json";
const TEXT: &str =
    "{\"mcpServers\": {\"a\": {\"command\": \"thing\", \"args\": [\"x\"]}}, \"hooks\": {}}\n";
/// The same servers, and something else.
const FORGED: &str = "{\"mcpServers\": {\"a\": {\"command\": \"thing\", \"args\": [\"x\"]}}, \"hooks\": {\"start\": \"evil\"}}\n";

fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Replaces the backup, and the hash of it in its record.
fn forge(person: &Person, text: &str) {
    for path in person.kept() {
        match path.extension().unwrap().to_str().unwrap() {
            "backup" => std::fs::write(&path, text).unwrap(),
            _ => {
                let record = std::fs::read_to_string(&path).unwrap();
                let mut record: Value = serde_json::from_str(&record).unwrap();
                record["original"] = hash(text).into();
                std::fs::write(&path, record.to_string()).unwrap();
            }
        }
    }
}

#[test]
fn a_backup_that_has_more_than_the_file_without_kennel_is_not_restored() {
    for forged in [FORGED, &FORGED.replace("thing", "evil")] {
        let person = Person::new();
        person.write(FILE, TEXT);
        person.wraps();
        assert_ne!(person.read(FILE), TEXT);
        forge(&person, forged);
        person.unwraps();
        assert_eq!(
            person.read(FILE),
            TEXT,
            "kennel's own words are gone, and nothing else came"
        );
    }
}

#[test]
fn a_backup_or_record_that_others_can_write_is_not_believed() {
    // White space beside an edit may differ from what splices leave, so that it shows which of them was used.
    let spaced = TEXT.replace("[\"x\"", "[  \"x\"");
    let unwrapped = |open: Option<&str>| {
        let person = Person::new();
        person.write(FILE, TEXT);
        person.wraps();
        forge(&person, &spaced);
        for path in person.kept() {
            if path
                .extension()
                .is_some_and(|ending| Some(ending.to_str().unwrap()) == open)
            {
                std::fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
            }
        }
        let before = person.read(FILE);
        let ended = person.kennel(&["unwrap", "--yes"]);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        let after = person.read(FILE);
        (after != before).then_some(after)
    };
    assert_eq!(unwrapped(None).unwrap(), spaced, "it is the backup");
    assert_eq!(unwrapped(Some("backup")).unwrap(), TEXT);
    assert_eq!(unwrapped(Some("json")), None, "nothing is on record");
}

#[test]
fn no_backup_goes_through_a_link() {
    let person = Person::new();
    person.write(FILE, TEXT);
    let elsewhere = person.file("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::create_dir_all(person.file("home/.local/state/kennel")).unwrap();
    symlink(&elsewhere, person.file("home/.local/state/kennel/wrap")).unwrap();
    let ended = person.kennel(&["wrap", "--yes"]);
    assert_eq!(ended.code(), Some(1), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("is a link"), "{}", ended.stderr);
    assert_eq!(person.read(FILE), TEXT);
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
}
