//! A folder of a test's own, removed with it, and the command run in it.

// Every test file uses a part of it.
#![allow(dead_code)]

use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

pub struct Folder(pub PathBuf);

/// What a run of the command left.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Folder {
    /// An empty folder; its name has `what` in it.
    pub fn new(what: &str) -> Folder {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tg-{}-{number}-{what}", std::process::id()));
        // Left by a test of an earlier process with the same number that was killed.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> &Folder {
        fs::write(self.path(name), content).expect("a temporary file");
        self
    }

    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).expect("a text")
    }

    /// What is in the folder, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("the folder");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<String> =
            entries.map(|entry| name(entry).into_string().expect("a name in UTF-8")).collect();
        names.sort();
        names
    }

    /// The command with these arguments, without colours.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tg"));
        command.args(args).current_dir(&self.0).env_remove("NO_COLOR").env("LC_ALL", "C.UTF-8");
        command
    }

    pub fn tg(&self, args: &[&str]) -> Ran {
        self.tg_with_input(args, "")
    }

    pub fn tg_with_input(&self, args: &[&str], input: impl AsRef<[u8]>) -> Ran {
        let mut command = self.command(args);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command starts");
        // A command that does not read its input closes it.
        let _ = child.stdin.take().expect("a pipe").write_all(input.as_ref());
        let output = child.wait_with_output().expect("the command ends");
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).expect("UTF-8"),
            err: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
