//! Kernels of the network ops.
//!
//! Rows, channels, planes, images and heads are independent of each other and are spread over
//! threads; whatever is summed is summed in an order that depends on shapes only. Workspaces are
//! divided into a fixed number of lanes, whatever the number of threads.

pub mod attention;
pub mod attention_grad;
pub mod batch_norm;
pub mod conv;
pub mod conv_tiles;
pub mod cross_entropy;
pub mod gather;
mod im2col;
pub mod norm;
pub mod pool;
mod product;
mod real;
mod rows;
pub mod softmax;

#[cfg(test)]
mod tests;
