"""TensorFlow's parameter servers through its classic API: every process builds its own graph, whose variables are placed
on the server; each worker pushes when it is ready. One server, one core a worker; the speed is that of all workers.

    python3 ps_tensorflow.py WORKERS
"""
import os
import socket
import subprocess
import sys
import time

BATCH, WARM_UP, STEPS, EXAMPLES, RATE = 50, 20, 300, 10000, 1e-4


def network(tf, images):
    """The network of examples/01_mnist."""

    def variable(name, shape, fan_in):
        bound = fan_in**-0.5
        return tf.get_variable(name, shape, initializer=tf.random_uniform_initializer(-bound, bound))

    def layer(name, x, shape, fan_in, product):
        return product(x, variable(name + "/weight", shape, fan_in)) + variable(name + "/bias", shape[-1:], fan_in)

    def convolution(x, kernel):
        return tf.nn.conv2d(x, kernel, strides=1, padding="SAME")

    def pool(x):
        return tf.nn.max_pool2d(x, ksize=2, strides=2, padding="VALID")

    x = pool(tf.nn.relu(layer("conv1", images, [5, 5, 1, 32], 25, convolution)))
    x = pool(tf.nn.relu(layer("conv2", x, [5, 5, 32, 64], 800, convolution)))
    x = tf.reshape(x, [-1, 7 * 7 * 64])
    x = tf.nn.relu(layer("dense", x, [7 * 7 * 64, 500], 7 * 7 * 64, tf.matmul))
    return layer("pred", x, [500, 10], 500, tf.matmul)


def start(job, index, cluster):
    import tensorflow

    tf = tensorflow.compat.v1
    tf.disable_eager_execution()
    # This task's share of the cores. The server chooses its number of threads itself.
    one_core = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config = one_core if job == "worker" else None
    return tf, tf.train.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index, config=config)


def work(index, cluster):
    """Its own images per second, while all the others are at work."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[index % len(cores)]})
    import numpy

    workers = len(cluster["worker"])
    tf, server = start("worker", index, cluster)
    random = numpy.random.default_rng(index)
    all_images = random.integers(0, 256, (EXAMPLES, 28, 28, 1), dtype=numpy.uint8)
    all_labels = random.integers(0, 10, EXAMPLES)

    device = tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)
    with tf.device(device):
        images = tf.placeholder(tf.uint8, [BATCH, 28, 28, 1])
        labels = tf.placeholder(tf.int64, [BATCH])
        scores = network(tf, tf.cast(images, tf.float32) / 255)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores))
        global_step = tf.train.get_or_create_global_step()
        train = tf.train.AdamOptimizer(RATE).minimize(loss, global_step=global_step)
        warm = tf.get_variable("warm", [], tf.int32, tf.zeros_initializer(), trainable=False)
        done = tf.get_variable("done", [], tf.int32, tf.zeros_initializer(), trainable=False)
        count_warm, count_done = tf.assign_add(warm, 1), tf.assign_add(done, 1)

    def step(session, number, counted=None):
        at = number * BATCH % EXAMPLES
        if at == 0:
            step.order = random.permutation(EXAMPLES)
        picked = step.order[at : at + BATCH]
        fetched = [train, global_step, loss] + ([counted] if counted is not None else [])
        return session.run(fetched, {images: all_images[picked], labels: all_labels[picked]})[-1]

    with tf.train.MonitoredTrainingSession(server.target, is_chief=index == 0) as session:
        number = 0

        def steps_until_all(counter, count):
            nonlocal number
            session.run(count)
            while step(session, number, counter) < workers:
                number += 1

        for number in range(WARM_UP):
            step(session, number)
        steps_until_all(warm, count_warm)
        begin = time.perf_counter()
        for number in range(number + 1, number + 1 + STEPS):
            step(session, number)
        speed = STEPS * BATCH / (time.perf_counter() - begin)
        steps_until_all(done, count_done)
    return speed


def free_addresses(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return addresses


def run_all(workers):
    """Prints what bench/sides.h reads: images per second of all, and the peak of the server's memory in MiB."""
    addresses = free_addresses(1 + workers)
    names = [("ps", 0)] + [("worker", index) for index in range(workers)]
    command = [sys.executable, os.path.abspath(__file__)]
    tasks = []
    try:
        for job, index in names:
            arguments = [*command, job, str(index), *addresses]
            tasks.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True))
        speed = sum(float(task.communicate(timeout=600)[0]) for task in tasks[1:])
        tasks[0].kill()
        _, _, usage = os.wait4(tasks[0].pid, 0)
        tasks[0].returncode = 0
    finally:
        for task in tasks:
            if task.poll() is None:
                task.kill()
                task.wait()
    print(f"{speed:.1f} {usage.ru_maxrss / 1024:.1f}")


def main():
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if len(sys.argv) == 2:
        return run_all(int(sys.argv[1]))
    job, index, *addresses = sys.argv[1:]
    cluster = {"ps": addresses[:1], "worker": addresses[1:]}
    if job == "ps":
        start(job, int(index), cluster)[1].join()
    else:
        print(work(int(index), cluster))


if __name__ == "__main__":
    main()
