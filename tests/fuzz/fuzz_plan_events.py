"""What happens to a model after a plan: one line of Python each, by name.

``{w}`` is a product (a convolution or a linear) of the model, ``{o}`` another, ``{n}`` a batch norm after one, ``{p}``
a parameter, ``{C}`` the channels. ``call``, ``threads`` and ``note`` keep what is compared, ``{call}`` is a call as the
program makes it.
"""

from __future__ import annotations

WRITES = {
    "copy_": "with torch.no_grad(): {p}.copy_({p}.flip(0) * 2)",
    "mul_": "with torch.no_grad(): {p}.mul_(1.5)",
    ".data.mul_": "{p}.data.mul_(2)",
    ".data.copy_": "{p}.data.copy_({p}.data.flip(0) * 3)",
    ".data[...]": "{p}.data[0] = 1.5",
    "foreach lerp": "torch._foreach_lerp_([p.data for p in model.parameters()], "
    "[p.data * 3 for p in model.parameters()], 0.5)",
    "foreach mul": "torch._foreach_mul_([p.data for p in model.parameters()], 1.25)",
    "NumPy": "{p}.detach().numpy()[...] *= 2",
    "NumPy of .data": "{p}.data.numpy()[0] += 1",
    "DLPack": "torch.from_dlpack({p}.detach()).mul_(2)",
    "storage": "torch.empty(0, dtype={p}.dtype).set_({p}.untyped_storage(), {p}.storage_offset(), {p}.shape, "
    "{p}.stride()).mul_(2)",
    "detach().mul_": "{p}.detach().mul_(2)",
    "data = new": "{p}.data = {p}.data * 2",
    "data = new, twice": "{p}.data = {p}.data * 2; {p}.data = {p}.data + 0.25",
    "data transposed": "{p}.data = {p}.data.transpose(0, -1).contiguous().transpose(0, -1) * 2",
    "new Parameter": "{p} = nn.Parameter({p}.detach() * 2)",
    "Parameter shared": "{w}.weight = {o}.weight",
    "swap_tensors": "torch.utils.swap_tensors({p}, nn.Parameter({p}.detach() * 2))",
    "load_state_dict": "model.load_state_dict(doubled(model.state_dict()))",
    "load_state_dict, assign": "model.load_state_dict(doubled(model.state_dict()), assign=True)",
    "load_state_dict, assign, twice": "for _ in range(2): "
    "model.load_state_dict(doubled(model.state_dict()), assign=True)",
    "load biases, assign": "model.load_state_dict("
    "{{k: v * 2 + 1 for k, v in model.state_dict().items() if 'bias' in k}}, strict=False, assign=True)",
    "bias None": "{w}.bias = None",
    "biases None": "for part in model.modules(): part._parameters.get('bias') is None or setattr(part, 'bias', None)",
    "bias new": "{w}.bias = nn.Parameter(like(torch.linspace(-1, 1, {C}), {w}.weight))",
    "bias data": "{w}.bias.data = {w}.bias.data * 2 + 1",
    "memory used again": "for _ in range(4): renewed({w}); {call}",
    "memory used again, weights swapped": "for _ in range(4): renewed({w}); renewed({o}); {call}",
    "memory used again by load": "for _ in range(3): model.load_state_dict(doubled(model.state_dict()), assign=True); "
    "{call}",
    "averaged": "shadow = copy.deepcopy(model); torch._foreach_mul_([p.data for p in shadow.parameters()], 2); "
    "torch._foreach_lerp_([p.data for p in model.parameters()], [p.data for p in shadow.parameters()], 0.5)",
    "averaged by torch": "averaged = torch.optim.swa_utils.AveragedModel(model); averaged.update_parameters(model); "
    "[p.data.mul_(2) for p in averaged.parameters()]; call(averaged, x); "
    "model.load_state_dict(averaged.module.state_dict())",
    "bias deleted": "del {w}.bias; {w}.register_parameter('bias', None)",
    "initialised": "torch.nn.init.constant_({p}, 0.3)",
    "vector_to_parameters": "nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()).detach() "
    "* 1.5, model.parameters())",
    "parameter's mean": "[p.data.sub_(p.data.mean()) for p in model.parameters()]",
}

NORMS = {
    "running_var.data": "{n}.running_var.data.fill_(2)",
    "running_mean.NumPy": "{n}.running_mean.numpy()[...] += 1",
    "running_var.mul_": "{n}.running_var.mul_(2)",
    "running_mean new": "{n}.running_mean = {n}.running_mean * 2 + 1",
    "reset_running_stats": "{n}.reset_running_stats()",
    "statistics None": "{n}.running_mean = {n}.running_var = None",
    "track_running_stats": "{n}.track_running_stats = False",
    "eps": "{n}.eps = 1.0",
    "eps of all": "for part in model.modules(): "
    "part.__dict__.update(eps=0.5) if hasattr(part, 'running_var') else None",
    "momentum": "{n}.momentum = 0.9",
    "norm to Identity": "setattr({np}, '{nn}', nn.Identity())",
    "norm to a copy": "setattr({np}, '{nn}', copy.deepcopy({n})); {n}.running_var.data.mul_(3)",
    "norm trains": "{n}.train(); {call}; {n}.eval()",
    "norm trains under no_grad": "{n}.train()\nwith torch.no_grad(): call(model, x)\n{n}.eval()",
    "statistics anew": "torch.optim.swa_utils.update_bn([x, x * 2], model)",
    "normed without statistics": "{n}.train(); {n}.track_running_stats = False",
    "affine of none": "{n}.weight = {n}.bias = None",
    "batches counted": "{n}.num_batches_tracked.add_(1); {n}.running_mean.data.add_(1)",
    "norm alone": "call({n}, x)",
    "norm's weight None": "{n}.weight = None",
    "norm's bias .data": "{n}.bias.data.add_(1)",
    "norm's hook": "handles.append({n}.register_forward_hook(lambda m, a, o: note('into the norm', a[0])))",
    "norm's pre-hook doubles": "handles.append({n}.register_forward_pre_hook(lambda m, a: (a[0] * 2,)))",
}

STRUCTURE = {
    "product to a copy": "setattr({wp}, '{wn}', copy.deepcopy({w})); {w}.weight.data.mul_(2)",
    "product shared": "setattr({wp}, '{wn}', {o})",
    "product to Identity": "setattr({wp}, '{wn}', nn.Identity())",
    "padding_mode": "{w}.padding_mode = 'reflect'; "
    "{w}._reversed_padding_repeated_twice = [1, 1] * ({w}.weight.dim() - 2)",
    "padding": "{w}.padding = tuple(2 for _ in {w}.padding); {w}.stride = tuple(2 for _ in {w}.stride)",
    "groups": "{w}.groups = 2",
    "weight_norm": "nn.utils.parametrizations.weight_norm({w})",
    "spectral weight": "nn.utils.parametrize.register_parametrization({w}, 'weight', nn.Tanh())",
    "forward on the instance": "{w}.forward = lambda x: x * 3",
    "forward of the class": "Program.forward = lambda self, x, skip=False: self.features(x) * 2",
    "forward on the model": "model.forward = lambda x, skip=False: model.features(x) * 2",
    "wrapped": "setattr({wp}, '{wn}', nn.Sequential({w}, nn.Tanh()))",
    "fused by hand": "setattr({wp}, '{wn}', nn.Sequential({w}, copy.deepcopy({n}))); "
    "setattr({np}, '{nn}', nn.Identity())",
    "another class": "{w}.__class__ = type('Louder', (type({w}),), {{'forward': lambda self, x: x * 3}})",
    "_conv_forward": "{w}._conv_forward = lambda x, w, b: x * 3",
    "norm's class": "{n}.__class__ = type('Norm', (type({n}),), {{'forward': lambda self, x: x * 3}})",
    "meta": "model.to('meta'); x = x.to('meta')",
    "pruned": "nn.utils.prune.l1_unstructured({w}, 'weight', 0.5)",
}

HOOKS = {
    "forward hook reads": "handles.append({w}.register_forward_hook(lambda m, a, o: note('hook', o)))",
    "forward hook doubles": "handles.append({w}.register_forward_hook(lambda m, a, o: o * 2))",
    "pre-hook doubles": "handles.append({w}.register_forward_pre_hook(lambda m, a: (a[0] * 2,)))",
    "backward hook": "handles.append({w}.register_full_backward_hook(lambda m, gi, go: note('backward hook', go[0])))",
    "backward pre-hook": "handles.append({w}.register_full_backward_pre_hook(lambda m, go: (go[0] * 2,)))",
    "global forward hook": "handles.append(nn.modules.module.register_module_forward_hook("
    "lambda m, a, o: note(type(m).__name__, o) if type(o) is torch.Tensor else None))",
    "global pre-hook": "handles.append(nn.modules.module.register_module_forward_pre_hook("
    "lambda m, a: note('into ' + type(m).__name__, a[0])))",
    "hooks removed": "[handle.remove() for handle in handles]; handles.clear()",
    "hook on the model": "handles.append(model.register_forward_hook(lambda m, a, o: note('out', o)))",
}

COPIES = {
    "deepcopy goes on": "model = copy.deepcopy(model)",
    "deepcopy beside": "other = copy.deepcopy(model); {w}.weight.data.mul_(2); call(other, x)",
    "pickle": "model = pickle.loads(pickle.dumps(model))",
    "torch.save": "file = io.BytesIO(); torch.save(model, file); file.seek(0); "
    "model = torch.load(file, weights_only=False)",
    "state_dict": "note('state_dict', *model.state_dict().values()); note(str(list(model.state_dict())))",
    "state_dict kept": "kept = model.state_dict(); {p}.data.mul_(2); note('kept', *kept.values()); "
    "model.load_state_dict(kept)",
    "state_dict cloned, then back": "kept = copy.deepcopy(model.state_dict()); {p}.data.mul_(2); {call}; "
    "model.load_state_dict(kept)",
    "double": "model.double(); x = x.double()",
    "double alone": "model.double()",
    "bfloat16": "model.bfloat16(); x = x.bfloat16()",
    "float": "model.float(); x = x.float()",
    "channels last": "model.to(memory_format={F})",
    "to_empty": "kept = copy.deepcopy(model.state_dict()); model.to_empty(device='cpu'); model.load_state_dict(kept)",
    "share_memory": "model.share_memory()",
    "shallow copy": "other = copy.copy(model); call(other, x)",
}

FLAGS = {
    "train": "model.train()",
    "eval": "model.eval()",
    "one evaluation after training": "train(model, x, 2); model.eval()",
    "trained in eval": "train(model, x, 1, False)",
    "frozen": "model.requires_grad_(False)",
    "thawed": "model.requires_grad_(True)",
    "BitFit": "[p.requires_grad_(name.endswith('bias')) for name, p in model.named_parameters()]",
    "BitFit, backward": "[p.requires_grad_(name.endswith('bias')) for name, p in model.named_parameters()]; "
    "call(model, x)",
    "BitFit of a part": "model.requires_grad_(True); {w}.weight.requires_grad_(False); "
    "{o}.weight.requires_grad_(False); call(model, x)",
    "weights alone": "[p.requires_grad_(not name.endswith('bias')) for name, p in model.named_parameters()]",
    "one trains": "model.requires_grad_(False); {p}.requires_grad_()",
}

WAYS = {
    "with gradients": "{autocast}call(model, x)",
    "gradient of the input": "{autocast}call(model, x.detach().clone().requires_grad_())",
    "frozen, gradient of the input": "model.requires_grad_(False)\n"
    "{autocast}call(model, x.detach().clone().requires_grad_())",
    "inference first": "with torch.inference_mode(){and_autocast}: call(model, x)",
    "inference first, gradient later": "with torch.no_grad(): {p}.mul_(2)\n"
    "with torch.inference_mode(){and_autocast}: call(model, x)\n"
    "model.requires_grad_(False)\n{autocast}call(model, x.detach().clone().requires_grad_())",
    "inference tensor refilled": "with torch.inference_mode(){and_autocast}: "
    "t = x.clone(); call(model.features, t); t.copy_(t * 2 + 1); call(model, t)",
    "the product alone": "with torch.no_grad(){and_autocast}: call({w}, x)",
    "the products by turns": "with torch.no_grad(){and_autocast}: call({w}, x); {w}.weight.mul_(2); call({o}, x)",
    "the products by turns, loaded": "with torch.no_grad(){and_autocast}: call({w}, x); "
    "model.load_state_dict(doubled(model.state_dict())); call({o}, x)",
    "the products by turns, .data": "with torch.no_grad(){and_autocast}: call({w}, x); x.data.mul_(2); call({o}, x)",
    "the products by turns, NumPy": "with torch.no_grad(){and_autocast}: call({w}, x); "
    "x.numpy()[...] += 1; call({o}, x)",
    "the product's view": "with torch.no_grad(){and_autocast}: call(lambda t: {w}(t).view(-1), x)",
    "features": "with torch.no_grad(){and_autocast}: call(model.features, x)",
    "norm skipped": "with torch.no_grad(){and_autocast}: call(model, x, skip=True)",
    "forward": "with torch.no_grad(){and_autocast}: call(model.forward, x)",
    "by name": "with torch.no_grad(){and_autocast}: call({w}, input=x)",
    "of one": "with torch.no_grad(){and_autocast}: call(model, x[:1])",
    "of none": "with torch.no_grad(){and_autocast}: call(model, x[:0])",
    "unbatched": "with torch.no_grad(){and_autocast}: call(model, x[0])",
    "in double": "with torch.no_grad(){and_autocast}: call(model, x.double())",
    "in bfloat16": "with torch.no_grad(){and_autocast}: call(model, x.bfloat16())",
    "strided": "with torch.no_grad(){and_autocast}: call(model, torch.stack((x, x), -1)[..., 0])",
    "transposed": "with torch.no_grad(){and_autocast}: call(model, x.transpose(0, -1).contiguous().transpose(0, -1))",
    "of a subclass": "with torch.no_grad(){and_autocast}: call(model, nn.Parameter(x))",
    "autocast": "with torch.no_grad(), torch.autocast('cpu', torch.bfloat16): call(model, x)",
    "autocast of float16": "with torch.no_grad(), torch.autocast('cpu', torch.float16): call(model, x)",
    "autocast trained": "with torch.autocast('cpu', torch.bfloat16): call(model, x)",
    "no autocast": "with torch.no_grad(): call(model, x)",
    "functional_call": "with torch.no_grad(){and_autocast}: call(lambda t: torch.func.functional_call(model, "
    "{{k: p.detach() * 2 for k, p in model.named_parameters()}}, (t,)), x)",
    "vmap": "with torch.no_grad(){and_autocast}: call(lambda t: stacked(model, t), x)",
    "grad of func": "call(lambda t: torch.func.grad(lambda u: total(model(u)))(t), x.detach())",
    "jvp": "call(lambda t: torch.func.jvp(lambda u: total(model(u)), (t,), (torch.ones_like(t),)), x.detach())",
    "jit.trace": "traced = traced_of(model, x); {p}.data.mul_(2); call(traced, x)",
    "jit.trace, loaded": "traced = traced_of(model, x); traced.load_state_dict(doubled(traced.state_dict())); "
    "call(traced, x)",
    "threads": "threads(model, x{threads})",
    "threads that write": "threads(model, x{threads}); {p}.data.mul_(2); threads(model, x{threads})",
    "x refilled": "with torch.no_grad(): x.copy_(x.flip(0) * 2)",
    "x refilled by .data": "x.data.mul_(2)",
    "x refilled by NumPy": "x.numpy()[...] += 1",
    "a class patched": "with torch.no_grad(), patched(type({w}), 'forward', lambda self, input: input * 2): "
    "call(model, x)",
    "batch_norm patched": "with torch.no_grad(), patched(F, 'batch_norm', lambda x, *a, **k: x * 2): call(model, x)",
    "saved elsewhere": "with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t): call(model, x)",
    "make_fx": "traced = torch.fx.experimental.proxy_tensor.make_fx(lambda t: model(t))(x); {p}.data.mul_(2); "
    "call(traced, x)",
    "fx": "traced = torch.fx.symbolic_trace(model, {{'skip': False}}); {p}.data.mul_(2); call(traced, x)",
    "patched": "with patched(F, 'linear', lambda x, w, b=None: x @ w.T): call(model, x)",
    "checkpoint": "{autocast}call(lambda t: torch.utils.checkpoint.checkpoint(model, t, use_reentrant=False), "
    "x.detach().clone().requires_grad_())",
    "watched by a mode": "with torch.no_grad(), Names() as names: call(model, x)",
    "anomaly": "with torch.autograd.set_detect_anomaly(True): call(model, x)",
    "reads kept": "note('kept', getattr(model, 'kept', None))",
}

# ---------------------------------------------------------------- of a program that trains

STEPS = {
    "step": "step(x)",
    "step, closure": "optimizer.step(lambda: closure(x))",
    "zero, read": "optimizer.zero_grad(set_to_none=False); note('gradients', *[p.grad for p in model.parameters()]); "
    "total(model(x)).backward(); optimizer.step()",
    "zero, norm": "optimizer.zero_grad(set_to_none=False); note('norms', *[p.grad.norm() for p in model.parameters()])",
    "zero, added": "optimizer.zero_grad(set_to_none=False); "
    "[p.grad.add_(1) for p in model.parameters()]; optimizer.step()",
    "zero, counted": "optimizer.zero_grad(set_to_none=False); note(str([p.grad is None for p in model.parameters()]))",
    "zero, copied": "model.zero_grad(set_to_none=False); other = copy.deepcopy(model); "
    "note('gradients', *[p.grad for p in other.parameters()])",
    "held": "held = [p.grad for p in model.parameters()]; step(x); note('held', *held)",
    "flat": "flat = flattened(model); step(x); note('flat', flat, flat.norm()); step(x); note('flat', flat)",
    "by hand": "optimizer.zero_grad(set_to_none=False); total(model(x)).backward()\n"
    "with torch.no_grad(): [p.sub_(p.grad * 1e-3) for p in model.parameters()]",
    "part of it": "optimizer.zero_grad(set_to_none=False); total(model.features(x)).backward(); optimizer.step()",
    "clipped": "step(x, clip=0.05)",
    "not clipped": "step(x, clip=1e6)",
    "clipped, non-finite": "[p.grad.mul_(float('inf')) for p in list(model.parameters())[:1] if p.grad is not None]; "
    "note('norm', nn.utils.clip_grad_norm_(model.parameters(), 1.0))",
    "clipped by inf norm": "note('norm', nn.utils.clip_grad_norm_(model.parameters(), 0.1, float('inf')))",
    "gradients None": "optimizer.zero_grad()",
    "frozen part": "{w}.weight.requires_grad_(False)",
    "scheduler": "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5); step(x); scheduler.step()",
    "scheduler alone": "scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)",
    "scheduler meanwhile": "scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5); undo(); step(x); "
    "scheduler.step(); apply(); step(x)",
    "scheduler's step": "optimizer.step(); scheduler.step() if 'scheduler' in globals() else None",
    "lr": "optimizer.param_groups[0]['lr'] = 0.03",
    "lr a tensor": "optimizer.param_groups[0]['lr'] = torch.tensor(0.02)",
    "state saved": "saved = copy.deepcopy(optimizer.state_dict()); step(x); optimizer.load_state_dict(saved)",
    "state of options": "note(str(sorted(k for k in optimizer.state_dict()['param_groups'][0] if k != 'fused')))",
    "optimizer copied": "optimizer = copy.deepcopy(optimizer); optimizer.step()",
    "optimizer pickled": "optimizer2 = pickle.loads(pickle.dumps(optimizer))",
    "step hook": "handles.append(optimizer.register_step_post_hook(lambda o, a, k: note('step')))",
    "new group": "optimizer.add_param_group({{'params': [nn.Parameter(like(torch.ones(3), model))]}}); "
    "optimizer.step()",
    "amsgrad": "optimizer.param_groups[0]['maximize'] = True",
    "weight written": "{p}.data.mul_(1.5); step(x)",
    "train": "model.train(); step(x)",
    "eval": "model.eval(); call(model, x)",
    "double": "model.double(); x = x.double(); optimizer.zero_grad()",
    "accumulated": "total(model(x)).backward(); total(model(x * 2)).backward(); optimizer.step()",
    "gradient hook": "{w}.weight.register_hook(lambda g: g * 2)",
    "post accumulate hook": "{w}.weight.register_post_accumulate_grad_hook(lambda p: note('accumulated', p.grad))",
    "channels last": "model.to(memory_format={F})",
    "weight of another layout": "{w}.weight.data = {w}.weight.data.transpose(0, -1).contiguous().transpose(0, -1); "
    "step(x)",
    "gradient of another layout": "{w}.weight.grad = {w}.weight.grad.transpose(0, -1).contiguous().transpose(0, -1)",
    "gradient shared": "{w}.weight.grad = {o}.weight.grad",
    "gradients sparse": "{w}.weight.grad = {w}.weight.grad.to_sparse(); optimizer.zero_grad(set_to_none=False)",
}
