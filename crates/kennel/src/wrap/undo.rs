//! Records of what `wrap` did to a file, so that `unwrap` can restore every byte: in the user's state directory,
//! readable only by the user, because a configuration may contain secrets.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kennel_sys::fs::{create_private_dirs, create_private_file, try_lock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::clients::Shape;
use super::entry::{Edit, Entry, EntryId, Unreadable};
use super::splice::{self, KennelPrefix};
use crate::checked_dir::CheckedDir;
use crate::hex;

/// The directory of the records, in the user's state directory.
const RECORDS_DIR: &str = "kennel";
const WRAP: &str = "wrap";
/// Number of digits of a path's hash in the names of its files.
const NAME: usize = 16;

/// The extensions of a file's backup and of its record. The record is written last and removed first.
const EXTENSIONS: [&str; 2] = ["backup", "json"];

/// The content of these files for one configuration, in the order of [`EXTENSIONS`].
pub(crate) type SavedFiles = [Option<Vec<u8>>; 2];

/// The record of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The path as it was given.
    pub(crate) path: PathBuf,
    /// The hash of the file as `wrap` left it: equal if it was not edited since.
    wrapped: String,
    /// The hash of the backup.
    original: String,
    /// The servers that `wrap` put behind Kennel.
    pub(crate) servers: Vec<EntryId>,
    /// The servers among them that had no arguments.
    pub(crate) args_added: Vec<EntryId>,
}

/// The user's records.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    dir: PathBuf,
}

impl Records {
    /// The directory of the records, by the XDG convention. Creates nothing.
    pub(crate) fn of_user(home: &Path) -> Records {
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
        let state = state.filter(|dir| dir.is_absolute());
        let state = state.unwrap_or_else(|| home.join(".local/state"));
        Records {
            dir: state.join(RECORDS_DIR).join(WRAP),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory that contains the directory of the records.
    pub(super) fn kennels_path(&self) -> &Path {
        self.dir.parent().expect("it was joined")
    }

    /// The same, opened, if it exists. It may not be a link or belong to another user.
    pub(crate) fn kennels_dir(&self) -> Result<Option<CheckedDir>, String> {
        let state = self.kennels_path().parent().expect("it was joined");
        match CheckedDir::open(state)? {
            Some(state) => state.subdir(RECORDS_DIR),
            None => Ok(None),
        }
    }

    /// The directory of the records and its parent, if they exist. Neither may be a link or belong to another user; the
    /// error names the one that does.
    pub(crate) fn checked_dir(&self) -> Result<Option<(CheckedDir, CheckedDir)>, String> {
        let Some(kennels) = self.kennels_dir()? else {
            return Ok(None);
        };
        let dir = kennels.subdir(WRAP)?;
        Ok(dir.map(|dir| (kennels, dir)))
    }

    /// Whether a file in the directory of the records has a name that `wrap` gives: 16 digits of a hash, then `.json`,
    /// `.backup` or, while it is written, `.PID.new`.
    pub(crate) fn is_record_name(name: &OsStr) -> bool {
        let Some((hash, ending)) = name.to_str().and_then(|name| name.split_once('.')) else {
            return false;
        };
        let unfinished = ending
            .strip_suffix(".new")
            .is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|digit| digit.is_ascii_digit()));
        hex::is_text(hash, NAME) && (unfinished || EXTENSIONS.contains(&ending))
    }

    /// Removes the directory of the records if it is empty.
    pub(super) fn remove_dir_if_empty(kennels: &CheckedDir) {
        kennels.remove_if_empty(WRAP);
    }

    /// Removes the directory of the records and its parent if they are empty.
    pub(crate) fn remove_dirs_if_empty(kennels: &CheckedDir) {
        Records::remove_dir_if_empty(kennels);
        let state = kennels.path().parent().map(CheckedDir::open);
        if let Some(Ok(Some(state))) = state {
            state.remove_if_empty(RECORDS_DIR);
        }
    }

    /// The record of the file at the real path `real`.
    pub(crate) fn of(&self, real: &Path) -> Option<Record> {
        let record = self.read(&file_name(real, "json"))?;
        let record: Record = serde_json::from_slice(&record).ok()?;
        // A record that was copied from another file does not count for this one.
        let is_of_file = fs::canonicalize(&record.path).is_ok_and(|path| path == real);
        is_of_file.then_some(record)
    }

    /// The content of a record that only `wrap` can have written.
    fn read(&self, name: &OsStr) -> Option<Vec<u8>> {
        let (_, dir) = self.checked_dir().ok()??;
        dir.read_own_file(name)
    }

    /// All records.
    pub(crate) fn all(&self) -> Vec<Record> {
        let Ok(Some((_, dir))) = self.checked_dir() else {
            return Vec::new();
        };
        let names = dir.names().unwrap_or_default().into_iter();
        let names = names.filter(|name| Records::is_record_name(name));
        let mut records: Vec<Record> = names
            .filter(|name| Path::new(name).extension() == Some(OsStr::new("json")))
            .filter_map(|name| serde_json::from_slice(&dir.read_own_file(&name)?).ok())
            .collect();
        records.sort_by(|one, other| one.path.cmp(&other.path));
        records
    }

    /// The original file, if `text` is what `wrap` wrote and the backup is complete. `edits` remove Kennel's words from
    /// `text`. If the backup differs from the result in more than white space beside an edit, it may be a forged backup,
    /// so it is not restored: only what is shown may be restored.
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
        (whole && differs_only_beside_edits(&backup, text, edits)).then_some(backup)
    }

    /// Writes the backup, then the record, before the change.
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
        // Of all its fields, only a path may be impossible to write as text.
        let text = serde_json::to_vec(&record).map_err(|_| {
            io::Error::other("its path is not UTF-8, so that no record can be kept; rename it")
        })?;
        create_private_dirs(&self.dir)?;
        // A backup may contain secrets: never write it through a link, or into a directory of another user.
        self.checked_dir().map_err(io::Error::other)?;
        self.sweep();
        write(&self.file(real, "backup"), original.as_bytes())?;
        write(&self.file(real, "json"), &text)
    }

    /// The present backup and record of a file.
    pub(crate) fn kept(&self, real: &Path) -> SavedFiles {
        EXTENSIONS.map(|ending| self.read(&file_name(real, ending)))
    }

    /// Restores the files that existed before [`keep`](Records::keep), if the change was not made after all.
    pub(crate) fn put_back(&self, real: &Path, kept: SavedFiles) -> io::Result<()> {
        let [backup, Some(record)] = kept else {
            self.forget(real);
            return Ok(());
        };
        if let Some(backup) = backup {
            write(&self.file(real, "backup"), &backup)?;
        }
        write(&self.file(real, "json"), &record)
    }

    /// Removes the records of a restored file, and the directories after the last one.
    pub(crate) fn forget(&self, real: &Path) {
        let Ok(Some((kennels, dir))) = self.checked_dir() else {
            return;
        };
        for ending in EXTENSIONS.into_iter().rev() {
            let _ = dir.remove_own_file(&file_name(real, ending));
        }
        Records::remove_dirs_if_empty(&kennels);
    }

    /// Removes the incomplete files of a killed `wrap`.
    pub(crate) fn sweep(&self) {
        let Ok(Some((_, dir))) = self.checked_dir() else {
            return;
        };
        for name in dir.names().unwrap_or_default() {
            let path = dir.path().join(&name);
            let unfinished = path.extension().is_some_and(|ending| ending == "new");
            let ours =
                unfinished && Records::is_record_name(&name) && dir.own_file(&name).is_some();
            let file = ours.then(|| fs::File::open(&path).ok()).flatten();
            // The process that writes it holds its lock.
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

/// Whether `backup` is `text` with these edits, except for white space at the ends of an edited range.
fn differs_only_beside_edits(backup: &str, text: &str, edits: &[Edit]) -> bool {
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

/// Writes a file atomically.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let aside = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = create_private_file(&aside)?;
    // Held until the file has its final name: [`Records::sweep`] removes only files that no process holds.
    try_lock(&file);
    let written = file.write_all(content).and_then(|()| file.sync_all());
    let written = written.and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written?;
    // Without this, the backup may be missing after a loss of power. Not every file system supports it.
    let dir = path.parent().and_then(|dir| fs::File::open(dir).ok());
    let _ = dir.map(|dir| dir.sync_all());
    Ok(())
}

fn hash(text: &str) -> String {
    hex::text(&Sha256::digest(text.as_bytes()))
}

/// The edits that remove Kennel from the servers of a file, and these servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UndoPlan {
    pub(crate) edits: Vec<Edit>,
    pub(crate) servers: Vec<EntryId>,
    /// The servers among them that had no arguments.
    pub(crate) args_added: Vec<EntryId>,
    /// Servers that `wrap` did not put behind Kennel: with options that it does not write, or without a record.
    pub(crate) left: Vec<String>,
    /// The positions of those in `left` that may be in the record: it is for fewer entries than match it.
    pub(crate) unclear: Vec<usize>,
}

/// How to undo only the change of `wrap` in a file that was edited since, or that has no record.
pub(crate) fn own_change(
    text: &str,
    shape: Shape,
    record: Option<&Record>,
) -> Result<UndoPlan, Unreadable> {
    let mut undo_plan = UndoPlan::default();
    let behind_kennel = |entry: Entry| {
        let behind = entry.command().as_deref().and_then(splice::kennel_prefix)?;
        Some((entry, behind))
    };
    let entries = shape.entries(text)?.into_iter();
    let entries: Vec<(Entry, KennelPrefix)> = entries.filter_map(behind_kennel).collect();
    for (entry, behind) in &entries {
        let id = record.map(|record| record.servers.iter().find(|id| id.fits(entry)));
        let (ours, args_added) = match (record, id.flatten()) {
            // Without a record, an entry that looks as if `wrap` wrote it counts as written by it.
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
                undo_plan.unclear.extend((!ours).then_some(entry.at));
                let added = meant(&record.args_added);
                (ours, added > 0 && bare.count() <= added)
            }
        };
        if !ours {
            undo_plan.left.push(entry.name.clone());
            continue;
        }
        let edits = splice::unwrap(text, entry, behind, args_added);
        undo_plan.edits.extend(edits);
        undo_plan.servers.push(EntryId::of(entry));
        undo_plan
            .args_added
            .extend(args_added.then(|| EntryId::of(entry)));
    }
    Ok(undo_plan)
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
    fn a_backup_may_differ_from_the_result_only_in_white_space_beside_an_edit() {
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
        let fits = |backup: &str| differs_only_beside_edits(backup, text, &edits);
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
