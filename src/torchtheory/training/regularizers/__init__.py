"""What keeps a training from fitting everything: dropout, decay, augmentation, distillation."""
