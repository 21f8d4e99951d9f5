//! A headless Chromium, spoken to over two named pipes (`--remote-debugging-pipe`: JSON messages,
//! each ended by a zero byte, on file descriptors 3 and 4).

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

pub struct Browser {
    process: Child,
    to: File,
    from: BufReader<File>,
    session: String,
    sent: u64,
    folder: PathBuf,
}

/// A browser to test with, if this machine has one.
pub fn find() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name))).find(|p| p.is_file())
}

impl Browser {
    pub fn start(program: &Path, name: &str) -> Browser {
        let folder = std::env::temp_dir().join(format!("tg-picture-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (to, from) = (folder.join("to"), folder.join("from"));
        for pipe in [&to, &from] {
            assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
        }
        let process = Command::new("sh")
            .arg("-c")
            .arg("exec \"$0\" \"$@\" 3<\"$TG_TO\" 4>\"$TG_FROM\"")
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
            ])
            .arg("--remote-debugging-pipe")
            .arg(format!("--user-data-dir={}", folder.join("profile").display()))
            .arg("--window-size=1200,800")
            .env("TG_TO", &to)
            .env("TG_FROM", &from)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The shell opens the pipes in this order, too; each waits for the other side.
        let to = OpenOptions::new().write(true).open(&to).unwrap();
        let from = BufReader::new(File::open(&from).unwrap());
        let mut browser = Browser { process, to, from, session: String::new(), sent: 0, folder };
        let target = browser.command("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.command("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().unwrap().to_owned();
        browser.command("Page.enable", json!({}));
        browser.command("Runtime.enable", json!({}));
        let size = json!({ "width": 1200, "height": 800, "deviceScaleFactor": 1, "mobile": false });
        browser.command("Emulation.setDeviceMetricsOverride", size);
        browser
    }

    fn next(&mut self) -> Value {
        let mut message = Vec::new();
        self.from.read_until(0, &mut message).unwrap();
        assert_eq!(message.pop(), Some(0), "the browser ended");
        serde_json::from_slice(&message).unwrap()
    }

    fn command(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut message = json!({ "id": self.sent, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        write!(self.to, "{message}\0").unwrap();
        self.to.flush().unwrap();
        loop {
            let answer = self.next();
            if answer["method"] == "Runtime.exceptionThrown" {
                panic!("the page failed: {answer}");
            }
            if answer["id"] == self.sent {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// Opens a page, and waits until its scripts have run.
    pub fn open(&mut self, html: &str) {
        let page = self.folder.join("page.html");
        std::fs::write(&page, html).unwrap();
        self.command("Page.navigate", json!({ "url": format!("file://{}", page.display()) }));
        while self.next()["method"] != "Page.loadEventFired" {}
    }

    /// The value of an expression in the page.
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true });
        let answer = self.command("Runtime.evaluate", params);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    pub fn text(&mut self, id: &str) -> String {
        self.eval(&format!("document.getElementById({id:?}).innerText")).as_str().unwrap().to_owned()
    }

    pub fn mouse(&mut self, kind: &str, x: f64, y: f64) {
        let button = if kind == "mouseMoved" { "none" } else { "left" };
        let params = json!({ "type": kind, "x": x, "y": y, "button": button, "clickCount": 1 });
        self.command("Input.dispatchMouseEvent", params);
    }

    pub fn key(&mut self, key: &str) {
        let text = if key.len() == 1 { key } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            self.command("Input.dispatchKeyEvent", json!({ "type": kind, "key": key, "text": text }));
        }
    }

    /// The window as wide and high as said, in CSS pixels.
    pub fn resize(&mut self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.command("Emulation.setDeviceMetricsOverride", size);
    }

    pub fn dark(&mut self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": value }]);
        self.command("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// A picture of the window, as PNG in base 64.
    pub fn screenshot(&mut self) -> String {
        self.command("Page.captureScreenshot", json!({}))["data"].as_str().unwrap().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
