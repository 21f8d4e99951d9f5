//! Conformance of the CUDA device: the cases that hold on the CPU, on the software device of
//! `tests/softdevice`, or on a real one with `TG_TEST_REAL_GPU=1`.
//!
//! The tests of ops, of gradients and of built-in functions are those of the CPU: the same files, with
//! another `device`.

#[path = "support/cuda_device.rs"]
mod device;
#[path = "support/folder.rs"]
mod folder;
#[path = "support/programs.rs"]
mod programs;

mod core_ops {
    mod elementwise;
    mod gradients;
    mod harness;
    mod matmul;
    mod movement;
    mod planned;
    mod random;
    mod reduce;
    mod updates;
}

mod network_ops {
    mod attention;
    mod bits;
    mod conv;
    mod empty;
    mod gather;
    mod losses;
    mod norms;
    mod pool;
    mod refused;
    mod softmax;
    mod support;
}

mod cuda {
    mod devices;
    mod examples;
    mod launches;
    mod training;
}

#[path = "tensor_functions.rs"]
mod tensor_functions;
