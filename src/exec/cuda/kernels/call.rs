//! What a kernel of the device is made for: tensors at their places.

use super::{Address, Arg, OpError, internal, place};
use crate::{
    exec::place::{Place, Root},
    ir::{DType, Type},
    plan::{Access, Plan},
    schedule::OpId,
};

/// An operand or result.
#[derive(Debug, Clone)]
pub(super) struct Tensor(Place);

impl Tensor {
    pub fn new(plan: &Plan, access: &Access) -> Result<Tensor, OpError> {
        Place::new(plan, access).map(Tensor)
    }

    /// This vector as each of so many rows.
    pub fn as_rows(&self, rows: usize) -> Result<Tensor, OpError> {
        let (&[columns], &[step]) = (self.shape(), self.strides()) else {
            return Err(internal("rows of what is no vector"));
        };
        let mut place = self.0.clone();
        place.ty = place.ty.with_shape([rows, columns])?;
        place.layout.strides = [0, step].into();
        Ok(Tensor(place))
    }

    /// Of its first element.
    pub fn address(&self) -> Address {
        let offset = self.0.layout.offset * self.dtype().size();
        Address { root: self.0.root, offset: offset as u64 }
    }

    pub fn ty(&self) -> &Type {
        &self.0.ty
    }

    pub fn dtype(&self) -> DType {
        self.0.ty.dtype()
    }

    pub fn shape(&self) -> &[usize] {
        self.0.ty.shape()
    }

    pub fn strides(&self) -> &[usize] {
        &self.0.layout.strides
    }

    pub fn elements(&self) -> usize {
        self.0.ty.elements()
    }

    pub fn bytes(&self) -> u64 {
        self.0.ty.bytes()
    }

    pub fn is_dense(&self) -> bool {
        self.0.layout.is_dense(self.shape())
    }

    /// A size; 0 for an axis that is not there.
    pub fn dim(&self, axis: usize) -> usize {
        self.shape().get(axis).copied().unwrap_or(0)
    }

    /// A stride; 0 for an axis that is not there.
    pub fn stride(&self, axis: usize) -> usize {
        self.strides().get(axis).copied().unwrap_or(0)
    }

    /// One past the furthest element, from the first on.
    pub fn reach(&self) -> usize {
        let last = |(&dim, &stride): (&usize, &usize)| dim.saturating_sub(1).saturating_mul(stride);
        self.shape()
            .iter()
            .zip(self.strides())
            .map(last)
            .fold(1, |sum: usize, steps| sum.saturating_add(steps))
    }

    /// Whether addresses of its buffer are multiples of `bytes` where offsets are.
    pub fn is_aligned(&self, bytes: usize) -> bool {
        self.address().offset.is_multiple_of(bytes as u64)
    }
}

impl From<&Tensor> for Arg {
    fn from(tensor: &Tensor) -> Arg {
        Arg::Address(tensor.address())
    }
}

impl From<Address> for Arg {
    fn from(address: Address) -> Arg {
        Arg::Address(address)
    }
}

/// One op with its tensors.
pub(super) struct Call {
    pub id: OpId,
    pub args: Vec<Tensor>,
    pub results: Vec<Tensor>,
    workspace: Address,
    workspace_bytes: u64,
}

impl Call {
    pub fn new(plan: &Plan, id: OpId, args: &[Access], results: &[Access]) -> Result<Call, OpError> {
        let tensors = |accesses: &[Access]| {
            accesses.iter().map(|access| Tensor::new(plan, access)).collect::<Result<Vec<Tensor>, OpError>>()
        };
        let workspace = place::workspace(plan, id)?;
        Ok(Call {
            id,
            args: tensors(args)?,
            results: tensors(results)?,
            workspace: Address { root: Root::Arena(workspace.start), offset: 0 },
            workspace_bytes: workspace.len() as u64,
        })
    }

    pub fn arg(&self, k: usize) -> Result<&Tensor, OpError> {
        self.args.get(k).ok_or_else(|| internal("a kernel asked for a missing operand"))
    }

    pub fn result(&self, k: usize) -> Result<&Tensor, OpError> {
        self.results.get(k).ok_or_else(|| internal("a kernel asked for a missing result"))
    }

    /// The workspace, which must have as many bytes.
    pub fn workspace(&self, bytes: u64) -> Result<Address, OpError> {
        if bytes > self.workspace_bytes {
            return Err(internal("a kernel got less workspace than it asked for"));
        }
        Ok(self.workspace)
    }
}
