"""The worker process: owns one device and runs its models.

worker     the models, the batch former, the launchers and the links: everything but the process around it
warmup     runs every instance of a model before it is served
launcher   the loop of one stream's thread: take a batch, run it, answer it whatever happens
__main__   the process: loads models, then does what the control socket says
"""
