//! What the command says about devices, and what it says where there is none.

use crate::{device::softdevice, folder::Folder};

fn printed(args: &[&str], variables: &[(&str, &str)]) -> Option<(Option<i32>, String, String)> {
    let folder = Folder::new("cuda-devices");
    folder.file("one.tg", "step f(x: f32[2]) { return x + 1.0 }\nprint(f(ones([2])))\n");
    let mut command = softdevice::command()?;
    let output = command.current_dir(&folder.0).args(args).envs(variables.iter().copied()).output();
    let output = output.expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Some((output.status.code(), text(output.stdout), text(output.stderr)))
}

#[test]
fn devices_are_listed_with_what_is_missing() {
    let Some((code, out, _)) = printed(&["devices"], &[]) else { return };
    assert_eq!(code, Some(0));
    assert!(out.contains("cuda:0  software device, compute capability 9.0, 2048.0 MiB"), "{out}");
    let two = printed(&["devices"], &[("SOFTDEVICE_COUNT", "2"), ("SOFTDEVICE_ARCH", "70")]).unwrap().1;
    assert!(two.contains("cuda:1") && two.contains("compute capability 7.0, and kernels need 7.5"), "{two}");
    let none = printed(&["devices"], &[("SOFTDEVICE_COUNT", "0")]).unwrap().1;
    assert!(none.contains("there is a driver, but no device that it can use"), "{none}");
    // A folder without libraries: whatever the machine has, or the remedy.
    let away = printed(&["devices"], &[("TG_CUDA_LIBRARIES", "/nowhere")]).unwrap().1;
    let has_device = away.lines().any(|line| line.starts_with("cuda:0"));
    let has_remedy = away.contains("not here: ") && away.contains("help: ");
    assert!(has_device || has_remedy, "{away}");
}

#[test]
fn a_device_that_is_not_there_is_an_error_and_auto_takes_the_cpu() {
    let Some((code, _, err)) = printed(&["run", "--device", "cuda:5", "one.tg"], &[]) else { return };
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("there is no `cuda:5`"), "{err}");
    let none = [("SOFTDEVICE_COUNT", "0")];
    let (code, out, err) = printed(&["run", "--device", "auto", "one.tg"], &none).unwrap();
    assert!(code == Some(0) && out.contains("[2. 2.]"), "{out}{err}");
    let (code, out, err) = printed(&["run", "--device", "auto", "--stats", "one.tg"], &[]).unwrap();
    assert!(code == Some(0) && out.contains("[2. 2.]"), "{out}{err}");
    assert!(err.contains("stats: `f`: 1 launches a step"), "{err}");
}
