//! Decides whether a directory contains only a server's state. `guard --state` is also a lock, so people give it all
//! kinds of directories: those that contain more are neither declared nor purged.

use std::collections::VecDeque;
use std::fs::DirEntry;
use std::path::{Path, PathBuf};

use kennel_sys::fs::{SHARED_DIRECTORIES, SYSTEM_DIRECTORIES, mount_points};
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_sys::user;

use crate::names::{Names, WORK_TREES};

/// Directories in a home that more than one program, or a person, uses.
const COMMON: Names = Names(
    "Desktop Documents Downloads Dropbox Mail Maildir Music Nextcloud OneDrive Pictures Projects Public Sync \
     Templates Videos bin code dev git go projects repos snap src work workspace .aws .azure .cache .cargo \
     .claude .codex .config .docker .gnupg .kube .local .local/bin .local/lib .local/share .local/state .mozilla \
     .npm .password-store .pki .rustup .ssh .thunderbird .var .vscode",
);
/// Entries of a home, or of a copy of one: a directory with one of these contains more than a server's state.
const HOME_ENTRIES: Names = Names("Desktop Documents Downloads .config .gnupg .local .ssh");
/// Variables that move the common directories of a home.
const MOVED: Names = Names("XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME");
/// Maximum number of entries that are searched for work trees, the nearest first.
const MAX_ENTRIES: usize = 20_000;

/// Why the directory at this real path contains more than a server's state; `None` if nothing suggests that.
pub(crate) fn more_than_state(path: &Path) -> Option<String> {
    let holds = |inside: &Path| inside.starts_with(path);
    if path.components().count() <= 2 {
        return Some("it is the root of the file system, or directly below it".to_owned());
    }
    if SYSTEM_DIRECTORIES.iter().any(|dir| path.starts_with(dir))
        || SHARED_DIRECTORIES.iter().any(|dir| holds(dir.as_ref()))
    {
        return Some("it belongs to the system".to_owned());
    }
    if let Some(home) = homes().into_iter().find(|home| holds(home)) {
        return Some(format!(
            "it is a home directory, or contains one ({})",
            home.display()
        ));
    }
    if let Some(common) = common_directories()
        .into_iter()
        .find(|common| holds(common))
    {
        return Some(format!("other programs use it ({})", common.display()));
    }
    let has = |name: &&str| path.join(name).symlink_metadata().is_ok();
    if let Some(name) = HOME_ENTRIES.iter().find(has) {
        return Some(format!("it looks like a home directory: it has {name}"));
    }
    if std::env::current_dir().is_ok_and(|here| holds(&here)) {
        return Some("it is the working directory, or contains it".to_owned());
    }
    let runtime = RuntimeDir::find_of_user().ok().flatten();
    if runtime.is_some_and(|runtime| holds(runtime.path())) {
        return Some("it contains Kennel's runtime directory".to_owned());
    }
    if let Some(why) = above_a_work_tree(path).or_else(|| in_a_work_tree(path)) {
        return Some(why);
    }
    let mounted = mount_points().into_iter().find(|mount| holds(mount))?;
    Some(match mounted == path {
        true => "a file system is mounted there".to_owned(),
        false => format!("a file system is mounted in it ({})", mounted.display()),
    })
}

/// Why a path is in a work tree or a repository. A home whose dotfiles are under version control does not count.
fn in_a_work_tree(path: &Path) -> Option<String> {
    let home = own_home();
    let above = path.ancestors().skip(1);
    let mut above =
        above.take_while(|dir| !home.as_ref().is_some_and(|home| home.starts_with(dir)));
    above.find_map(|dir| {
        let is_there = |name: &str| dir.join(name).symlink_metadata().is_ok();
        let sign = version_control_entry(is_there)?;
        Some(format!(
            "it is in a work tree or repository: {} has {sign}",
            dir.display()
        ))
    })
}

/// Why a directory is a work tree or a repository, or contains one.
fn above_a_work_tree(path: &Path) -> Option<String> {
    let mut dirs = VecDeque::from([path.to_owned()]);
    let mut left = MAX_ENTRIES;
    while let Some(dir) = dirs.pop_front().filter(|_| left > 0) {
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        let entries: Vec<_> = entries.take(left).collect();
        left -= entries.len();
        let is_there = |name: &str| entries.iter().any(|entry| entry.file_name() == name);
        if let Some(sign) = version_control_entry(is_there) {
            return Some(match dir == path {
                true => format!("it is a work tree or repository: it has {sign}"),
                false => format!("it contains a work tree or repository ({})", dir.display()),
            });
        }
        let is_dir = |entry: &&DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        dirs.extend(entries.iter().filter(is_dir).map(DirEntry::path));
    }
    None
}

/// The entry that shows that a directory is a work tree, or a bare Git repository.
fn version_control_entry(is_there: impl Fn(&str) -> bool) -> Option<&'static str> {
    let bare = ["HEAD", "objects", "refs"]
        .iter()
        .all(|name| is_there(name));
    let sign = WORK_TREES.iter().find(|name| is_there(name));
    sign.or(bare.then_some("HEAD, objects and refs"))
}

fn own_home() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from)?;
    kennel_guard::real_path(home).ok()
}

/// The directories that many programs use, in every home and where this user moved them.
fn common_directories() -> Vec<PathBuf> {
    let homes = homes();
    let in_homes = homes
        .iter()
        .flat_map(|home| COMMON.iter().map(move |name| home.join(name)));
    let moved = MOVED.iter().filter_map(std::env::var_os);
    let moved = moved.filter_map(|path| kennel_guard::real_path(PathBuf::from(path)).ok());
    let named = own_home().map(|home| directories_of_user(&home));
    let all = in_homes.chain(moved).chain(named.unwrap_or_default());
    all.filter(|path| path.components().count() > 1).collect()
}

/// The directories that a desktop created with names in the user's language: lines such as
/// `XDG_DOCUMENTS_DIR="$HOME/Dokumente"`.
fn directories_of_user(home: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(home.join(".config/user-dirs.dirs")).unwrap_or_default();
    let directory = |line: &str| {
        let (_, value) = line.trim().strip_prefix("XDG_")?.split_once("_DIR=")?;
        let value = value.strip_prefix('"')?.strip_suffix('"')?;
        Some(match value.strip_prefix("$HOME") {
            Some(below) => home.join(below.trim_start_matches('/')),
            None => PathBuf::from(value),
        })
    };
    text.lines().filter_map(directory).collect()
}

/// The home directories of this user and of all others.
fn homes() -> Vec<PathBuf> {
    user::homes().into_iter().chain(own_home()).collect()
}

#[cfg(test)]
mod tests {
    use kennel_testkit::Scope;

    use super::*;

    #[test]
    fn directories_with_more_than_state_are_distinguished_from_state() {
        let scope = Scope::new("plain-state");
        let dir = |name: &str| {
            std::fs::create_dir_all(scope.path(name)).unwrap();
            scope.path(name)
        };
        assert_eq!(more_than_state(&dir("data/thing")), None);
        assert_eq!(more_than_state(&scope.path("not/there/yet")), None);
        for name in WORK_TREES.iter() {
            dir(&format!("work{name}/{name}"));
            let why = more_than_state(&scope.path(format!("work{name}"))).unwrap();
            assert!(why.contains(name), "{why}");
        }
        for (inside, path) in [
            ("outer/a/repo/.git", "outer"),
            ("work/.git", "work/data"),
            ("work/.git", "work/data/below/x.db"),
            ("bare.git/refs", "bare.git"),
            ("bare.git/refs", "bare.git/objects"),
            ("keeps/bare.git/refs", "keeps"),
        ] {
            let inside = dir(inside);
            if inside.ends_with("refs") {
                let repository = inside.parent().unwrap();
                std::fs::create_dir_all(repository.join("objects")).unwrap();
                std::fs::write(repository.join("HEAD"), "ref: refs/heads/main").unwrap();
            }
            let why = more_than_state(&scope.path(path)).expect(path);
            assert!(why.contains("a work tree or repository"), "{why}");
        }
        for name in HOME_ENTRIES.iter() {
            dir(&format!("copy{name}/{name}"));
            let why = more_than_state(&scope.path(format!("copy{name}"))).unwrap();
            assert!(why.contains(name), "{why}");
        }
        let other_home = dir("other-home");
        dir("other-home/.config");
        let lines =
            "# made by a desktop\nXDG_DOCUMENTS_DIR=\"$HOME/Dokumente\"\nXDG_MUSIC_DIR=\"/m/x\"\n";
        std::fs::write(other_home.join(".config/user-dirs.dirs"), lines).unwrap();
        let named = directories_of_user(&other_home);
        assert_eq!(named, [other_home.join("Dokumente"), "/m/x".into()]);
        // The `.git` of a linked work tree is a file.
        std::fs::write(dir("linked").join(".git"), "gitdir: elsewhere").unwrap();
        assert!(more_than_state(&scope.path("linked")).is_some());
        let here = std::env::current_dir().unwrap();
        let home = own_home().unwrap();
        for path in [
            Path::new("/"),
            Path::new("/var"),
            Path::new("/var/lib"),
            Path::new("/etc/thing"),
            Path::new("/proc/self"),
            &here,
            here.parent().unwrap(),
            &home,
            &home.join("Documents"),
            &home.join(".local/share"),
            &home.join("src"),
            &home.join(".ssh"),
        ] {
            assert!(more_than_state(path).is_some(), "{}", path.display());
        }
        let mount = mount_points().into_iter();
        for mount in mount.filter(|mount| mount.components().count() > 2) {
            assert!(more_than_state(&mount).is_some(), "{}", mount.display());
        }
    }
}
