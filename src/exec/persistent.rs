//! Persistent tensors between steps: in the memory of the host, of a device, or of both.

use super::{Tensor, cuda::Block};
use crate::{ir::Type, ops::OpError};

/// A parameter or state that outlives steps. It is where it was used last: a step on a device leaves it
/// there, and it comes back when the host asks for it.
#[derive(Debug)]
pub struct Persistent {
    ty: Type,
    /// `None` where the newest value is on the device only.
    host: Option<Tensor>,
    /// Room on a device.
    block: Option<Block>,
    /// Whether the block holds the newest value.
    is_on_device: bool,
}

impl From<Tensor> for Persistent {
    fn from(tensor: Tensor) -> Persistent {
        Persistent { ty: tensor.ty().clone(), host: Some(tensor), block: None, is_on_device: false }
    }
}

impl Persistent {
    /// Its dtype and shape.
    pub fn ty(&self) -> &Type {
        &self.ty
    }

    /// A new value of the same type; the room on the device stays.
    pub fn set(&mut self, tensor: Tensor) {
        if *tensor.ty() != self.ty {
            *self = Persistent::from(tensor);
            return;
        }
        self.host = Some(tensor);
        self.is_on_device = false;
    }

    /// The value, copied from the device if only that has it.
    pub fn host(&mut self) -> Result<Tensor, OpError> {
        if let Some(tensor) = &self.host {
            return Ok(tensor.clone());
        }
        let mut tensor = Tensor::try_zeros(self.ty.clone())?;
        match &self.block {
            Some(block) => block.download(tensor.bytes_mut()?)?,
            None => return Err(OpError::new("internal: a persistent tensor without a value")),
        }
        self.host = Some(tensor.clone());
        Ok(tensor)
    }

    /// Takes the value out, so that the host can change it without a copy.
    fn take(&mut self) -> Result<Tensor, OpError> {
        self.host()?;
        self.host.take().ok_or_else(|| OpError::new("internal: a persistent tensor without a value"))
    }

    /// Puts back what was taken.
    fn put(&mut self, tensor: Tensor, is_written: bool) {
        self.host = Some(tensor);
        self.is_on_device &= !is_written;
    }

    /// The room that it has on a device, where that is the one that `fits` means.
    pub(super) fn block(&self, fits: impl FnOnce(&Block) -> bool) -> Option<&Block> {
        self.block.as_ref().filter(|block| fits(block))
    }

    /// Puts the newest value into `block`, or into the room that it has where none is given.
    pub(super) fn move_to_device(&mut self, block: Option<Block>) -> Result<(), OpError> {
        if let Some(block) = block {
            // Whatever is on another device comes back first.
            self.host()?;
            self.block = Some(block);
            self.is_on_device = false;
        }
        if self.is_on_device {
            return Ok(());
        }
        match (&self.block, &self.host) {
            (Some(block), Some(tensor)) => block.upload(tensor.bytes())?,
            _ => return Err(OpError::new("internal: a persistent tensor without room on the device")),
        }
        self.is_on_device = true;
        Ok(())
    }

    /// A step on the device writes it: what the host has is old.
    pub(super) fn changed_on_device(&mut self) {
        if self.is_on_device {
            self.host = None;
        }
    }
}

/// Lets the host work on the tensors themselves; `is_written` says which of them it may change. They
/// go back also when a panic unwinds.
pub fn on_host<T>(
    slots: &mut [Persistent],
    is_written: &dyn Fn(usize) -> bool,
    work: impl FnOnce(&mut [Tensor]) -> T,
) -> Result<T, OpError> {
    struct Taken<'a> {
        slots: &'a mut [Persistent],
        tensors: Vec<Tensor>,
        is_written: &'a dyn Fn(usize) -> bool,
    }
    impl Drop for Taken<'_> {
        fn drop(&mut self) {
            for (k, (slot, tensor)) in
                self.slots.iter_mut().zip(std::mem::take(&mut self.tensors)).enumerate()
            {
                slot.put(tensor, (self.is_written)(k));
            }
        }
    }
    let mut taken = Taken { slots, tensors: Vec::new(), is_written };
    for k in 0..taken.slots.len() {
        if let Some(slot) = taken.slots.get_mut(k) {
            taken.tensors.push(slot.take()?);
        }
    }
    Ok(work(&mut taken.tensors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_go_back_when_the_work_panics() {
        let mut slots = [Persistent::from(Tensor::from(1.0)), Persistent::from(Tensor::from(2.0))];
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            on_host(&mut slots, &|_| true, |tensors| {
                tensors[1] = Tensor::from(3.0);
                std::panic::resume_unwind(Box::new("a kernel fails"));
            })
        }));
        assert!(result.is_err());
        let values = slots.each_mut().map(|slot| slot.host().expect("it is there"));
        assert_eq!(values, [Tensor::from(1.0), Tensor::from(3.0)]);
    }

    #[test]
    fn a_value_of_another_type_takes_its_place() {
        let mut slot = Persistent::from(Tensor::from(1.0));
        let new = Tensor::from_slice(&[2], &[1i32, 2]).expect("two elements");
        slot.set(new.clone());
        assert_eq!(slot.ty(), new.ty());
        assert_eq!(slot.host(), Ok(new));
    }
}
