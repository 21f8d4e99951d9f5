//! The software CUDA device of `tests/softdevice`: built once per version of its source, and made known to
//! this process or to a child.

// Every test file uses a part of it.
#![allow(dead_code)]

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The names of the libraries, in the order in which they are loaded.
const LIBRARIES: [&str; 3] = ["libcuda.so", "libnvrtc.so", "libcublasLt.so"];

/// Two layers, and a step that trains them with AdamW.
pub const NET: &str = "\
use nn
use optim

model Net() {
  let a = nn.Linear(8, 16)
  let b = nn.Linear(16, 1)
  fn forward(x) = b(tanh(a(x)))
}
let net = Net()
let opt = optim.adamw(net, lr: 1e-2)

step train(x: f32[4, 8]) {
  let cost = mean(square(net(x) - 1.0))
  minimize cost over net with opt
  return cost
}

let x = uniform([4, 8])
";

/// The folder of the stand-ins. `None`, and a line that says so, where there is no C++ compiler.
pub fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder = FOLDER.get_or_init(build);
    if folder.is_none() {
        println!("skipped: the software CUDA device needs g++");
    }
    folder.as_deref()
}

fn build() -> Option<PathBuf> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
    Command::new(compiler).arg("--version").output().ok().filter(|output| output.status.success())?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/softdevice");
    let mut hasher = DefaultHasher::new();
    let mut files: Vec<PathBuf> =
        fs::read_dir(&source).expect("the source of the device").map(|file| file.unwrap().path()).collect();
    files.sort();
    for file in files {
        fs::read(file).expect("a file of the device").hash(&mut hasher);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("softdevice-{:016x}", hasher.finish()));
    if !folder.exists() {
        // Test processes may build it at the same time: the first one that is done wins.
        let own = folder.with_extension(std::process::id().to_string());
        let output = Command::new("sh").arg(source.join("build.sh")).arg(&own).output().expect("a shell");
        assert!(
            output.status.success(),
            "the software device does not build:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        if fs::rename(&own, &folder).is_err() {
            fs::remove_dir_all(&own).expect("a folder of this process");
        }
    }
    Some(folder)
}

/// Loads the stand-ins into this process. From then on whoever looks for a library by name finds them.
/// Says whether there are any.
pub fn load() -> bool {
    static LOADED: OnceLock<bool> = OnceLock::new();
    *LOADED.get_or_init(|| {
        let Some(folder) = folder() else { return false };
        // SAFETY: nothing but the code under test reads it, after this.
        unsafe { std::env::set_var("TG_CACHE_DIR", folder.join("cache")) };
        for name in LIBRARIES {
            // SAFETY: a library that this repository holds the source of.
            let library = unsafe { libloading::Library::new(folder.join(name)) }.expect("a stand-in");
            std::mem::forget(library);
        }
        true
    })
}

/// A run of the command on the software device.
pub fn command() -> Option<Command> {
    let folder = folder()?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_tg"));
    command.env("TG_CUDA_LIBRARIES", folder).env("TG_CACHE_DIR", folder.join("cache"));
    Some(command)
}
