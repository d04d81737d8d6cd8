//! Replaces a configuration atomically, at its real path, with the same owner and permissions.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use kennel_sys::fs::{self, FileFacts, FileId, NotCopied};
use kennel_sys::user::UserId;

use super::quoted;
use super::walk::{self, FileInDir};

/// Maximum size of a configuration that is read, in bytes. A `.claude.json` with the prompts of years has 16 MB.
const MAX_BYTES: u64 = 32 << 20;

/// A configuration as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Its real location, after following links.
    pub(crate) spot: FileInDir,
    pub(crate) text: String,
}

impl Source {
    /// Its path without links.
    pub(crate) fn real(&self) -> &Path {
        &self.spot.real
    }
}

/// Reads a configuration.
pub(crate) fn read(path: &Path) -> Result<Source, String> {
    let spot = walk::find(path)?;
    let bytes = content(&spot).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        let most = MAX_BYTES >> 20;
        return Err(format!(
            "more than {most} MB: too large for a configuration"
        ));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
            + 1;
        format!("line {line}: not UTF-8")
    })?;
    Ok(Source { spot, text })
}

/// The file's bytes.
fn content(spot: &FileInDir) -> io::Result<Vec<u8>> {
    bytes_at(spot, spot.name())
}

fn bytes_at(spot: &FileInDir, name: &OsStr) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = open(spot, name)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a regular file. If it has been replaced by a named pipe meanwhile, does not wait for its other end.
fn open(spot: &FileInDir, name: &OsStr) -> io::Result<File> {
    let file = spot.dir().open_file(name)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("not a regular file")),
    }
}

/// Checks whether the file could be written; the error says what to do.
pub(crate) fn writable(spot: &FileInDir) -> Result<(), String> {
    let facts = spot.facts().map_err(|error| error.to_string())?;
    if fs::is_on_read_only_fs(&spot.real) {
        let why = "its file system is read-only; make that writable, or change the file where it comes from";
        return Err(why.to_owned());
    }
    // Root may write any file; but a file without write permission was protected on purpose.
    if !spot.dir().may_write(spot.name()) || !facts.is_writable() {
        return Err(format!(
            "it is read-only; `chmod u+w {}` first, if you want to change it",
            quoted(&spot.real)
        ));
    }
    // Only the user knows which of several names are the same configuration, and which are snapshots to keep.
    if facts.links() > 1 {
        let (path, aside) = (quoted(&spot.real), format!("{}.new", spot.real.display()));
        let aside = quoted(Path::new(&aside));
        return Err(format!(
            "it has {} names (hard links), and replacing it would leave the others as they are; `cp -p {path} {aside} && \
             mv {aside} {path}` makes it a separate file, if that is what you want",
            facts.links()
        ));
    }
    match spot.dir().may_write(OsStr::new(".")) {
        true => Ok(()),
        false => Err(format!(
            "its directory is read-only, so the file cannot be replaced atomically; `chmod u+w {}` first",
            quoted(spot.real.parent().unwrap_or(Path::new("/")))
        )),
    }
}

/// Replaces the file by `new`, unless it was changed since it was read.
pub(crate) fn replace(source: &Source, new: &str) -> Result<(), String> {
    let spot = &source.spot;
    writable(spot)?;
    let failed = |error: io::Error| format!("cannot be written: {error}");
    let aside = temporary_name(spot.name(), std::process::id());
    let file = spot.dir().create_file(&aside).map_err(failed)?;
    // Held until the file has its final name: [`sweep`] removes only files that no process holds.
    fs::try_lock(&file);
    let done = fill(&file, source, new).and_then(|()| put(source, &file, &aside).map_err(failed));
    // It is the former file, or the new one. A file that an app saved is neither.
    if done == Ok(true) || is_at(spot, &aside, &file) {
        let _ = spot.dir().remove_file(&aside);
    }
    match done? {
        true => {
            // Without this, the former file may be back after a loss of power. Not every file system supports it.
            let _ = spot.dir().sync();
            Ok(())
        }
        false => Err("it was changed in the meantime; run the command again".to_owned()),
    }
}

/// Writes the new file, with owner, attributes and mode of the file that was read.
fn fill(mut file: &File, source: &Source, new: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot be written: {error}");
    let spot = &source.spot;
    let old = open(spot, spot.name()).map_err(failed)?;
    file.write_all(new.as_bytes()).map_err(failed)?;
    fs::copy_rights(&old, file).map_err(|error| match error {
        NotCopied::Mode(error) => failed(error),
        NotCopied::Group => "it belongs to a group that you are not in, and a new file in its place would belong to another one; \
             change its group (`chgrp`) or take the group's rights away (`chmod g=`) first, or edit the file yourself"
            .to_owned(),
        NotCopied::Attribute(name, error) => format!(
            "it has {name}, which cannot be copied to a new file ({error}); remove it first (`setfacl -b`, \
             `setfattr -x`), or edit the file yourself"
        ),
    })?;
    file.sync_all().map_err(failed)
}

/// Renames the new file into place; `false` if the present file is not the one that was read.
fn put(source: &Source, file: &File, aside: &OsStr) -> io::Result<bool> {
    let spot = &source.spot;
    if content(spot)? != source.text.as_bytes() {
        return Ok(false);
    }
    match exchange(source, file, aside) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            spot.dir().rename(aside, spot.name())?;
            Ok(true)
        }
        done => done,
    }
}

/// Swaps the new file with the present one and checks that it is the one that was read: an app may have saved another
/// one at the last moment. If so, swaps them back.
fn exchange(source: &Source, file: &File, aside: &OsStr) -> io::Result<bool> {
    let spot = &source.spot;
    let swap = || spot.dir().exchange(aside, spot.name());
    swap()?;
    if bytes_at(spot, aside).is_ok_and(|bytes| bytes == source.text.as_bytes()) {
        return Ok(true);
    }
    swap()?;
    if !is_at(spot, aside, file) {
        // The app saved once more in between: that file is the newest.
        swap()?;
    }
    Ok(false)
}

/// Whether the entry of that name is this file.
fn is_at(spot: &FileInDir, name: &OsStr, file: &File) -> bool {
    let there = spot.dir().facts_of(name);
    matches!((there, FileId::of(file)), (Ok(Some(there)), Ok(ours)) if there.id() == ours)
}

/// The name of the file while it is written.
fn temporary_name(name: &OsStr, pid: u32) -> OsString {
    let mut aside = OsString::from(".");
    aside.push(name);
    aside.push(format!(".kennel-{pid}"));
    aside
}

/// Removes the incomplete files that a killed `wrap` or `unwrap` left beside a file: they may contain the same secrets.
pub(crate) fn sweep(spot: &FileInDir) -> io::Result<()> {
    let owner = spot.facts()?.owner();
    let prefix = [b".", spot.name().as_encoded_bytes(), b".kennel-"].concat();
    for name in spot.dir().names()? {
        let pid = name.as_encoded_bytes().strip_prefix(prefix.as_slice());
        if pid.is_some_and(|pid| !pid.is_empty() && pid.iter().all(u8::is_ascii_digit)) {
            let _ = remove_abandoned(spot, &name, owner);
        }
    }
    Ok(())
}

fn remove_abandoned(spot: &FileInDir, name: &OsStr, owner: UserId) -> io::Result<()> {
    let file = spot.dir().open_file(name)?;
    let facts = FileFacts::of(&file)?;
    let ours = facts.is_file() && [UserId::current(), owner].contains(&facts.owner());
    // The process that writes it holds its lock.
    if ours && fs::try_lock(&file) {
        spot.dir().remove_file(name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kennel_testkit::Scope;

    use super::*;

    #[test]
    fn a_file_that_changed_since_it_was_read_is_not_written_over() {
        let scope = Scope::new("write");
        let path = scope.path("mcp.json");
        std::fs::write(&path, "one").unwrap();
        let source = read(&path).unwrap();
        std::fs::write(&path, "two").unwrap();
        let error = replace(&source, "three").unwrap_err();
        assert!(error.contains("changed in the meantime"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        let source = read(&path).unwrap();
        replace(&source, "three").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three");
        let left = std::fs::read_dir(scope.dir()).unwrap();
        let left = left.filter(|entry| {
            entry
                .as_ref()
                .is_ok_and(|entry| entry.file_name() != "home")
        });
        assert_eq!(left.count(), 1);
    }
    #[test]
    fn a_file_that_an_app_saves_at_the_last_moment_is_restored() {
        let scope = Scope::new("write");
        let path = scope.path("mcp.json");
        std::fs::write(&path, "one").unwrap();
        let source = read(&path).unwrap();
        let aside = OsStr::new(".aside");
        let ours = || {
            std::fs::write(scope.path(".aside"), "three").unwrap();
            File::open(scope.path(".aside")).unwrap()
        };
        // Written after the comparison, which this test leaves out.
        std::fs::write(&path, "two").unwrap();
        assert!(!exchange(&source, &ours(), aside).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(!exchange(&source, &ours(), aside).unwrap());
        assert!(path.is_symlink());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "one").unwrap();
        assert!(exchange(&source, &ours(), aside).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three");
    }

    #[test]
    fn an_access_control_list_and_other_attributes_go_along_and_open_nothing_to_the_group() {
        use std::os::unix::fs::PermissionsExt;
        /// Version 2; then tag, rights and id: owner rw, uid 65534 rw, group none, mask rw, others none.
        const LIST: [u32; 11] = [
            2, 0x6_0001, !0, 0x6_0002, 65534, 0x0_0004, !0, 0x6_0010, !0, 0x0_0020, !0,
        ];
        let list: Vec<u8> = LIST.iter().flat_map(|word| word.to_le_bytes()).collect();
        let flags = rustix::fs::XattrFlags::empty();
        let of = |path: &Path, name: &str| {
            let mut value = vec![0; 256];
            let length = rustix::fs::getxattr(path, name, &mut value[..]);
            length.ok().map(|length| value[..length].to_vec())
        };
        let acl = "system.posix_acl_access";
        let scope = Scope::new("write");
        let path = scope.path("mcp.json");
        std::fs::write(&path, "one").unwrap();
        rustix::fs::setxattr(&path, acl, &list, flags).unwrap();
        rustix::fs::setxattr(&path, "user.mark", b"mine", flags).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o660, "the mask");
        replace(&read(&path).unwrap(), "two").unwrap();
        assert_eq!(mode(&path), 0o660);
        assert_eq!(of(&path, acl), Some(list.clone()));
        assert_eq!(of(&path, "user.mark").as_deref(), Some(&b"mine"[..]));

        // This file does not get the default attributes of its directory.
        let plain = scope.path("plain.json");
        std::fs::write(&plain, "one").unwrap();
        std::fs::set_permissions(&plain, PermissionsExt::from_mode(0o640)).unwrap();
        rustix::fs::setxattr(scope.dir(), "system.posix_acl_default", &list, flags).unwrap();
        replace(&read(&plain).unwrap(), "two").unwrap();
        assert_eq!((mode(&plain), of(&plain, acl)), (0o640, None));
    }
}
