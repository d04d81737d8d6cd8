//! Faults around Kennel: the disk, the runtime directory, descriptors.

use std::fs;
use std::io::{Result, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kennel_sys::process::ProcessRef;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::processes::{Member, files_of};
use crate::world::World;

/// Space for the records and logs of a few daemons.
const SIZE: &str = "size=4m,mode=700";
/// More than any process of Kennel needs.
const MANY: u64 = 4096;

/// A small disk, which only root can mount.
#[derive(Debug)]
pub(crate) struct Disk {
    dir: PathBuf,
}

impl Disk {
    /// `None` if this user may not mount.
    pub(crate) fn mount(dir: &Path) -> Result<Option<Disk>> {
        if !crate::has_own_namespaces() {
            return Ok(None);
        }
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", SIZE, "kennel-chaos"])
            .arg(dir);
        let mounted = mount.stderr(Stdio::null()).status()?.success();
        Ok(mounted.then(|| Disk {
            dir: dir.to_owned(),
        }))
    }

    /// Fills the disk completely.
    fn fill(&self) -> Result<()> {
        let mut filler = fs::File::create(self.dir.join("filler"))?;
        let mut block = vec![0u8; 64 * 1024];
        while !block.is_empty() {
            if filler.write_all(&block).is_err() {
                block.truncate(block.len() / 2);
            }
        }
        Ok(())
    }

    fn free(&self) {
        let _ = fs::remove_file(self.dir.join("filler"));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.dir).status();
    }
}

impl World {
    pub(crate) fn fill_disk(&mut self) -> Result<&'static str> {
        self.unrecorded = true;
        self.some_went_solo = true;
        match &self.disk {
            Some(disk) => disk.fill().map(|()| "full"),
            None => Ok("needs root"),
        }
    }

    pub(crate) fn free_disk(&mut self) {
        if let Some(disk) = &self.disk {
            disk.free();
        }
    }

    pub(crate) fn remove_dir(&mut self) {
        self.unrecorded = true;
        self.some_went_solo = true;
        self.restore_dir();
        let _ = fs::remove_dir_all(self.scope.runtime_dir());
        self.locks.clear();
    }

    /// Sets a mode that Kennel refuses: open to others, or closed to its owner.
    pub(crate) fn loosen_dir(&mut self, how: u64) -> String {
        let mode = [0o755, 0o770, 0o500, 0o000][how as usize % 4];
        self.dir_is_loose = true;
        self.unrecorded = true;
        self.some_went_solo = true;
        self.set_mode(mode);
        format!("{mode:o}")
    }

    pub(crate) fn restore_dir(&mut self) {
        if self.dir_is_loose {
            self.set_mode(0o700);
            self.dir_is_loose = false;
        }
    }

    fn set_mode(&self, mode: u32) {
        let permissions = fs::Permissions::from_mode(mode);
        // If it is missing, Kennel creates it with the right mode.
        let _ = fs::set_permissions(self.scope.runtime_dir(), permissions);
    }

    /// Limits the descriptors of a process to the open ones and `more`.
    pub(crate) fn limit(&mut self, member: &Member, more: u64) -> String {
        let pid = member.process.pid();
        let most = files_of(pid).len() as u64 + more;
        self.some_went_solo = true;
        set_limit(&member.process, most);
        if let Ok(process) = ProcessRef::open(pid) {
            self.limited.push(process);
        }
        format!("{:?} {pid} has {most}", member.role)
    }

    pub(crate) fn lift_limits(&mut self) {
        for process in self.limited.drain(..) {
            set_limit(&process, MANY);
        }
    }
}

fn set_limit(process: &ProcessRef, most: u64) {
    let limit = Rlimit {
        current: Some(most),
        // The hard limit stays: an unprivileged user could not raise it again.
        maximum: Some(MANY),
    };
    let pid = i32::try_from(process.pid()).ok().and_then(Pid::from_raw);
    // If the pid is reused between check and call, it belongs to another process of this world, whose limit is raised.
    if process.is_alive() && pid.is_some() {
        let _ = prlimit(pid, Resource::Nofile, limit);
    }
}
