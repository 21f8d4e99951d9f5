//! `tg devices`: what programs can run on; and what the steps of a run gave a device to do.

use crate::{
    engine::Session,
    exec::cuda::{self, Unavailable},
    report::Bytes,
    terminal::{Exit, output::Output},
};

pub fn run(output: &mut Output) -> Exit {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let plural = if threads == 1 { "" } else { "s" };
    let mut text = format!("cpu     {}, {threads} thread{plural}\n", std::env::consts::ARCH);
    let mut has_devices = false;
    match cuda::devices() {
        Ok(devices) => {
            has_devices = true;
            for device in devices {
                let (major, minor) = device.capability;
                let line = format!(
                    "{:7} {}, compute capability {major}.{minor}, {}\n",
                    format!("cuda:{}", device.index),
                    crate::report::visible::line(&device.name, 80),
                    Bytes(device.memory_bytes)
                );
                text.push_str(&line);
                text.extend(device.problem.map(|problem| missing("cannot run programs", &problem)));
            }
        }
        Err(problem) => text.push_str(&missing("cuda    not here", &problem)),
    }
    if has_devices {
        match cuda::collectives() {
            Ok(version) => {
                text.push_str(&format!("nccl    {version}, between ranks that have a GPU each\n"));
            }
            Err(problem) => text.push_str(&missing("nccl    not here", &problem)),
        }
    }
    output.out(&text);
    Exit::Success
}

fn missing(what: &str, problem: &Unavailable) -> String {
    let indent = if what.ends_with("not here") { "" } else { "        " };
    format!("{indent}{what}: {}\n        help: {}\n", problem.reason, problem.help)
}

/// What each step gave the device to do, one line each; a line where that was the CPU.
pub fn stats(session: &Session) -> String {
    let steps = session.device_stats();
    if steps.is_empty() {
        return "stats: no step ran on a device other than the CPU\n".to_owned();
    }
    let mut text = String::new();
    for (name, plan, stats) in steps {
        let how = match (stats.is_recorded, stats.parts) {
            (true, 1) => "replayed as one graph".to_owned(),
            (true, parts) => format!("replayed as {parts} graphs"),
            (false, _) => "started one by one".to_owned(),
        };
        text.push_str(&format!(
            "stats: `{name}`: {} launches a step ({} kernels, {} products, {} copies), {how}; {} planned, {} beside for scalars and the next inputs; {} taken from the device{}\n",
            stats.launches(),
            stats.kernels,
            stats.products,
            stats.copies,
            Bytes(plan.peak_bytes()),
            Bytes(stats.beside_bytes),
            Bytes(stats.taken_bytes),
            collectives(&stats),
        ));
    }
    text
}

/// How the collectives of a step went to the other ranks; nothing where it has none.
fn collectives(stats: &cuda::Stats) -> String {
    let how = match stats.path {
        _ if stats.collectives == 0 => return String::new(),
        cuda::Path::Unknown => return String::new(),
        cuda::Path::Nccl => "by NCCL, beside other work",
        cuda::Path::NoLibrary => "through the host, as not every rank uses NCCL (`tg devices`)",
        cuda::Path::SharedDevice => "through the host, as ranks share a GPU",
    };
    format!("; {} collectives {how}", stats.collectives)
}
