"""The NPU: the only importer of torch and torch_npu, the only user of the ACL runtime."""
