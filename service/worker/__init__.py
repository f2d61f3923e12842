"""The worker process: owns one device and runs its models.

worker      the batch former, the models, the links and control over them: everything but the process
links       what is said to front ends, and the table of what is served that they have copies of
control     models by name: loaded, loaded again and unloaded while others are served
models      models by id: their instances, streams and launchers
devices     the device, when a model runs on one
library     what can be loaded
configured  the warm-up that a model's config asks for
warmup      runs every instance of a model before it is served
launcher    the loop of one stream's thread: take a batch, run it, answer it whatever happens
__main__    the process: loads models, then does what the control socket says
"""
