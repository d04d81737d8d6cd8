//! A configuration is replaced whole or not at all, where it really is, as it was allowed to be read.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::quoted;

/// No configuration is longer.
const LONGEST: u64 = 64 << 20;

/// A configuration as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Where it really is, behind links of dotfiles.
    pub(crate) real: PathBuf,
    pub(crate) text: String,
}

/// Reads a configuration.
pub(crate) fn read(path: &Path) -> Result<Source, String> {
    let real = path.canonicalize().map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    let is_file = |meta: io::Result<std::fs::Metadata>| match meta {
        Ok(meta) if !meta.is_file() => Err("not a regular file, as a configuration is".to_owned()),
        other => other.map(drop).map_err(|error| error.to_string()),
    };
    // Before it is opened, too: a pipe would hold us up, and a device may do anything.
    is_file(real.metadata())?;
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options()
        .read(true)
        .custom_flags(nonblocking)
        .open(&real)
        .map_err(|error| error.to_string())?;
    is_file(file.metadata())?;
    let meta = file.metadata().map_err(|error| error.to_string())?;
    honest_link(path, meta.uid())?;
    file.take(LONGEST + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > LONGEST {
        return Err(format!("more than {LONGEST} bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
            + 1;
        format!("line {line}: not UTF-8")
    })?;
    Ok(Source { real, text })
}

/// A link is followed if we made it, or root, or whoever has the file: nobody else says which file of ours changes.
fn honest_link(path: &Path, owner: u32) -> Result<(), String> {
    let link = path.symlink_metadata().map_err(|error| error.to_string())?;
    let us = rustix::process::geteuid().as_raw();
    if !link.is_symlink() || [us, 0, owner].contains(&link.uid()) {
        return Ok(());
    }
    let whose = link.uid();
    Err(format!(
        "it is a link of uid {whose} to a file of uid {owner}; name the file itself, if that is the one you mean"
    ))
}

/// Whether it could be written, with what to do if not.
pub(crate) fn writable(real: &Path) -> Result<(), String> {
    let meta = real.metadata().map_err(|error| error.to_string())?;
    let closed = rustix::fs::access(real, rustix::fs::Access::WRITE_OK).is_err();
    // Nothing is closed to root; a file that nobody may write was made so on purpose all the same.
    if closed || meta.permissions().mode() & 0o222 == 0 {
        return Err(format!(
            "it is read-only; `chmod u+w {}` first, if it is meant to change",
            quoted(real)
        ));
    }
    let dir = real.parent().unwrap_or(Path::new("/"));
    match rustix::fs::access(dir, rustix::fs::Access::WRITE_OK) {
        Ok(()) => Ok(()),
        Err(_) => Err(format!(
            "its directory is read-only, so that it cannot be replaced whole; `chmod u+w {}` first",
            quoted(dir)
        )),
    }
}

/// Puts `new` in the place of what was read, unless somebody changed it meanwhile.
pub(crate) fn replace(source: &Source, new: &str) -> Result<(), String> {
    let real = &source.real;
    writable(real)?;
    let meta = real.metadata().map_err(|error| error.to_string())?;
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let aside = real.with_file_name(format!(".{name}.kennel-{}", std::process::id()));
    let put = || -> io::Result<bool> {
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&aside)?;
        file.write_all(new.as_bytes())?;
        // Only root can give it back to another owner; who cannot is its owner already, or may not write it.
        let _ = rustix::fs::fchown(
            &file,
            Some(rustix::fs::Uid::from_raw(meta.uid())),
            Some(rustix::fs::Gid::from_raw(meta.gid())),
        );
        file.set_permissions(meta.permissions())?;
        file.sync_all()?;
        if std::fs::read(real)? != source.text.as_bytes() {
            return Ok(false);
        }
        std::fs::rename(&aside, real)?;
        Ok(true)
    };
    let done = put();
    if !matches!(done, Ok(true)) {
        let _ = std::fs::remove_file(&aside);
    }
    match done {
        Ok(true) => Ok(()),
        Ok(false) => Err("it was changed meanwhile; run the command again".to_owned()),
        Err(error) => Err(format!("cannot be written: {error}")),
    }
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
        assert!(error.contains("changed meanwhile"), "{error}");
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
}
