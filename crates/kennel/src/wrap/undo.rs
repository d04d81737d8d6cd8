//! What `wrap` did to a file, written down so that `unwrap` can give every byte back: in the user's state
//! directory, readable by nobody else, for a configuration may hold secrets.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kennel_sys::fs::{create_private_dirs, create_private_file, try_lock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::clients::Shape;
use super::entry::{Edit, Entry, EntryId, Unreadable};
use super::splice::{self, Behind};
use crate::judged_dir::JudgedDir;

/// The directory of the records, in the user's state directory.
const KENNELS: &str = "kennel";
const WRAP: &str = "wrap";
/// How many digits of a path's hash name its files.
const NAME: usize = 16;

/// The endings of a file's backup and of its record, which is written last and removed first.
const ENDINGS: [&str; 2] = ["backup", "json"];

/// What is kept of one file, by [`ENDINGS`].
pub(crate) type Kept = [Option<Vec<u8>>; 2];

/// What was done to one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The file, as it was named.
    pub(crate) path: PathBuf,
    /// What `wrap` left there: if it is still so, nobody edited it since.
    wrapped: String,
    /// What the backup is.
    original: String,
    /// The servers that are behind Kennel by our doing.
    pub(crate) servers: Vec<EntryId>,
    /// Those of them that had no arguments.
    pub(crate) args_added: Vec<EntryId>,
}

/// The user's records.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    dir: PathBuf,
}

impl Records {
    /// Where they are, by the XDG convention. Creates nothing.
    pub(crate) fn of_user(home: &Path) -> Records {
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
        let state = state.filter(|dir| dir.is_absolute());
        let state = state.unwrap_or_else(|| home.join(".local/state"));
        Records {
            dir: state.join(KENNELS).join(WRAP),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory of the records, and the one it is in, if they are there. Neither may be a link or belong to
    /// another user: an error says which does.
    pub(crate) fn judged_dir(&self) -> Result<Option<(JudgedDir, JudgedDir)>, String> {
        let kennels = self.dir.parent().expect("it was joined");
        let state = kennels.parent().expect("it was joined");
        let Some(state) = JudgedDir::open(state)? else {
            return Ok(None);
        };
        let Some(kennels) = state.subdir(KENNELS)? else {
            return Ok(None);
        };
        let dir = kennels.subdir(WRAP)?;
        Ok(dir.map(|dir| (kennels, dir)))
    }

    /// Whether a file in the directory of the records has a name that `wrap` gives: 16 digits of a hash, then `.json`,
    /// `.backup` or, half written, `.PID.new`.
    pub(crate) fn wrote(name: &OsStr) -> bool {
        let Some((hash, ending)) = name.to_str().and_then(|name| name.split_once('.')) else {
            return false;
        };
        let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let unfinished = ending
            .strip_suffix(".new")
            .is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|digit| digit.is_ascii_digit()));
        hash.len() == NAME && hash.bytes().all(hex) && (unfinished || ENDINGS.contains(&ending))
    }

    /// Removes the directory of the records, and the one it is in, if nothing is in them.
    pub(crate) fn remove_dirs_if_empty(kennels: &JudgedDir) {
        kennels.remove_if_empty(WRAP);
        let state = kennels.path().parent().map(JudgedDir::open);
        if let Some(Ok(Some(state))) = state {
            state.remove_if_empty(KENNELS);
        }
    }

    /// What was done to the file that is really at `real`.
    pub(crate) fn of(&self, real: &Path) -> Option<Record> {
        let record = self.read(&file_name(real, "json"))?;
        let record: Record = serde_json::from_slice(&record).ok()?;
        // A record that was copied from another file's says nothing about this one.
        let is_of_file = fs::canonicalize(&record.path).is_ok_and(|path| path == real);
        is_of_file.then_some(record)
    }

    /// What we wrote here, and nobody else can have written.
    fn read(&self, name: &OsStr) -> Option<Vec<u8>> {
        let (_, dir) = self.judged_dir().ok()??;
        dir.read_own_file(name)
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Record> {
        let Ok(Some((_, dir))) = self.judged_dir() else {
            return Vec::new();
        };
        let names = dir.names().unwrap_or_default().into_iter();
        let names = names.filter(|name| Records::wrote(name));
        let mut records: Vec<Record> = names
            .filter(|name| Path::new(name).extension() == Some(OsStr::new("json")))
            .filter_map(|name| serde_json::from_slice(&dir.read_own_file(&name)?).ok())
            .collect();
        records.sort_by(|one, other| one.path.cmp(&other.path));
        records
    }

    /// The file as it was before, if `text` is what `wrap` left there and the backup is whole. `edits` take Kennel's words out
    /// of `text`. A backup that differs from the outcome in more than white space beside an edit is not a backup of this
    /// file, whoever wrote it: nothing but what is shown may be restored.
    pub(crate) fn original(
        &self,
        real: &Path,
        record: &Record,
        text: &str,
        edits: &[Edit],
    ) -> Option<String> {
        let backup = self.read(&file_name(real, "backup"))?;
        let backup = String::from_utf8(backup).ok()?;
        let whole = record.wrapped == hash(text) && record.original == hash(&backup);
        (whole && differs_beside_edits_only(&backup, text, edits)).then_some(backup)
    }

    /// Writes down what is about to be done; the backup first.
    pub(crate) fn keep(
        &self,
        path: &Path,
        real: &Path,
        (original, wrapped): (&str, &str),
        servers: Vec<EntryId>,
        args_added: Vec<EntryId>,
    ) -> io::Result<()> {
        let record = Record {
            path: std::path::absolute(path)?,
            wrapped: hash(wrapped),
            original: hash(original),
            servers,
            args_added,
        };
        // Of all its fields, a path alone may have no text.
        let text = serde_json::to_vec(&record).map_err(|_| {
            io::Error::other("its path is not UTF-8, so that no record can be kept; rename it")
        })?;
        create_private_dirs(&self.dir)?;
        // A backup may hold secrets: it does not go through a link, nor to another user.
        self.judged_dir().map_err(io::Error::other)?;
        self.sweep();
        write(&self.file(real, "backup"), original.as_bytes())?;
        write(&self.file(real, "json"), &text)
    }

    /// The backup and the record of a file, as they are.
    pub(crate) fn kept(&self, real: &Path) -> Kept {
        ENDINGS.map(|ending| self.read(&file_name(real, ending)))
    }

    /// Restores what was kept of a file before [`keep`](Records::keep), if what that wrote down was not done after all.
    pub(crate) fn put_back(&self, real: &Path, kept: Kept) -> io::Result<()> {
        let [backup, Some(record)] = kept else {
            self.forget(real);
            return Ok(());
        };
        if let Some(backup) = backup {
            write(&self.file(real, "backup"), &backup)?;
        }
        write(&self.file(real, "json"), &record)
    }

    /// Forgets a file that is as it was. The directories go with the last one.
    pub(crate) fn forget(&self, real: &Path) {
        let Ok(Some((kennels, dir))) = self.judged_dir() else {
            return;
        };
        for ending in ENDINGS.into_iter().rev() {
            let _ = dir.remove_own_file(&file_name(real, ending));
        }
        Records::remove_dirs_if_empty(&kennels);
    }

    /// Removes what a killed `wrap` left half written here.
    pub(crate) fn sweep(&self) {
        let Ok(Some((_, dir))) = self.judged_dir() else {
            return;
        };
        for name in dir.names().unwrap_or_default() {
            let path = dir.path().join(&name);
            let unfinished = path.extension().is_some_and(|ending| ending == "new");
            let ours = unfinished && Records::wrote(&name) && dir.own_file(&name).is_some();
            let file = ours.then(|| fs::File::open(&path).ok()).flatten();
            // Whoever writes it holds it.
            if file.is_some_and(|file| try_lock(&file)) {
                let _ = dir.remove_own_file(&name);
            }
        }
    }

    fn file(&self, real: &Path, ending: &str) -> PathBuf {
        self.dir.join(file_name(real, ending))
    }
}

fn file_name(real: &Path, ending: &str) -> OsString {
    let name = hash(&real.to_string_lossy());
    format!("{}.{ending}", &name[..NAME]).into()
}

/// Whether `backup` is `text` with these edits, but for white space at the ends of what is edited.
fn differs_beside_edits_only(backup: &str, text: &str, edits: &[Edit]) -> bool {
    let mut edits: Vec<&Edit> = edits.iter().collect();
    edits.sort_by_key(|edit| edit.span.start);
    let mut rest = Some(backup);
    let mut demand = |piece: &str| {
        rest = rest.and_then(|rest| rest.trim_start().strip_prefix(piece.trim()));
    };
    let mut at = 0;
    for edit in edits {
        demand(text.get(at..edit.span.start).unwrap_or("\0"));
        demand(&edit.text);
        at = edit.span.end;
    }
    demand(&text[at..]);
    rest.is_some_and(|rest| rest.trim().is_empty())
}

/// Whole, or not at all.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let aside = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = create_private_file(&aside)?;
    // Held until it has its final name: [`Records::sweep`] removes only what nobody holds.
    try_lock(&file);
    let written = file.write_all(content).and_then(|()| file.sync_all());
    let written = written.and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written?;
    // Without it, the backup may be gone after a loss of power. Not every file system can do it.
    let dir = path.parent().and_then(|dir| fs::File::open(dir).ok());
    let _ = dir.map(|dir| dir.sync_all());
    Ok(())
}

fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What takes Kennel away from the servers of a file, and from which.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Undoing {
    pub(crate) edits: Vec<Edit>,
    pub(crate) servers: Vec<EntryId>,
    /// Those of them that had no arguments.
    pub(crate) args_added: Vec<EntryId>,
    /// Behind Kennel by somebody else's doing: with options that `wrap` does not write, or not on record.
    pub(crate) left: Vec<String>,
    /// Where those of `left` stand that may be on record: it means fewer entries than it fits.
    pub(crate) unclear: Vec<usize>,
}

/// How to undo just our own change in a file that was edited since, or was never written down.
pub(crate) fn own_change(
    text: &str,
    shape: Shape,
    record: Option<&Record>,
) -> Result<Undoing, Unreadable> {
    let mut undoing = Undoing::default();
    let behind_kennel = |entry: Entry| {
        let behind = entry.command().as_deref().and_then(splice::behind)?;
        Some((entry, behind))
    };
    let entries = shape.entries(text)?.into_iter();
    let entries: Vec<(Entry, Behind)> = entries.filter_map(behind_kennel).collect();
    for (entry, behind) in &entries {
        let id = record.map(|record| record.servers.iter().find(|id| id.fits(entry)));
        let (ours, args_added) = match (record, id.flatten()) {
            // Without a record, what looks like ours is taken for ours.
            (None, _) => (!behind.own_options, false),
            (Some(_), None) => (false, false),
            (Some(record), Some(id)) => {
                let meant = |ids: &[EntryId]| ids.iter().filter(|other| *other == id).count();
                let fitting = entries.iter().filter(|(entry, _)| id.fits(entry));
                let bare = fitting.clone().filter(|(entry, behind)| {
                    let words = entry.command().map_or(0, |command| command.len());
                    words == behind.server + 1
                });
                let ours = fitting.count() <= meant(&record.servers);
                undoing.unclear.extend((!ours).then_some(entry.at));
                let added = meant(&record.args_added);
                (ours, added > 0 && bare.count() <= added)
            }
        };
        if !ours {
            undoing.left.push(entry.name.clone());
            continue;
        }
        let edits = splice::unwrap(text, entry, behind, args_added);
        undoing.edits.extend(edits);
        undoing.servers.push(EntryId::of(entry));
        undoing
            .args_added
            .extend(args_added.then(|| EntryId::of(entry)));
    }
    Ok(undoing)
}

#[cfg(test)]
mod tests {
    use kennel_testkit::Scope;

    use super::*;

    #[test]
    fn a_path_that_no_record_can_hold_is_refused_before_anything_is_kept() {
        use std::os::unix::ffi::OsStrExt;
        let scope = Scope::new("undo");
        let records = Records {
            dir: scope.path("state/kennel/wrap"),
        };
        let path = scope
            .path("config")
            .join(OsStr::from_bytes(b"odd\xff.json"));
        let refused = records.keep(&path, &path, ("a", "b"), Vec::new(), Vec::new());
        assert!(refused.unwrap_err().to_string().contains("not UTF-8"));
        assert!(!scope.path("state").exists());
    }

    #[test]
    fn a_backup_differs_from_what_is_undone_in_nothing_but_white_space_beside_an_edit() {
        let text = r#"{ // a note
  "command": "kennel", "args": [ "run", "x" ], "env": {"A": "one two"}
}
"#;
        let edit = |old: &str, new: &str| {
            let at = text.find(old).unwrap();
            Edit {
                span: at..at + old.len(),
                text: new.to_owned(),
            }
        };
        let edits = [edit("\"run\", \"x\"", ""), edit("\"kennel\"", "\"x\"")];
        let undone = crate::wrap::entry::apply(text, &edits);
        let fits = |backup: &str| differs_beside_edits_only(backup, text, &edits);
        assert!(fits(&undone));
        assert!(fits(&undone.replace("[  ]", "[]")));
        for (old, new) in [
            ("one two", "onetwo"),
            ("a note\n", "a note"),
            ("\"env\": ", "\"env\":"),
            ("\"x\"", "\"y\""),
            ("\"x\"", "\"x\", \"more\": 1"),
            ("}\n}", "}, \"more\": 1\n}"),
        ] {
            let planted = undone.replacen(old, new, 1);
            assert_ne!(planted, undone);
            assert!(!fits(&planted), "{planted}");
        }
    }
}
