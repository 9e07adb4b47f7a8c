"""pods.py MANIFEST SECRET: prints the pods that Kubernetes starts for a Job, a JobSet or a PyTorchJob, as JSON.

For each pod, in the order of their numbers: its host name, the names by which others reach it, the environment and the command of its container,
the command of its probe, and where its volumes are mounted. The environment and the names are those that the controllers give:
batch/v1's Job controller, jobset.x-k8s.io/v1alpha2, and kubeflow.org/v1 (pkg/controller.v1/pytorch/envvar.go).
"""
import json
import re
import sys

import yaml


def variables_of(container, secret):
    values = {}
    for variable in container.get("env", []):
        if "secretKeyRef" in variable.get("valueFrom", {}):
            values[variable["name"]] = secret
        else:
            values[variable["name"]] = variable["value"]
    return values


def expand(word, environment):
    """As the kubelet does: $(NAME) is replaced if the container has this variable."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), word)


def mounts_of(spec, container):
    """Which volumes the pods share: those of a claim."""
    claims = {volume["name"] for volume in spec.get("volumes", []) if "persistentVolumeClaim" in volume}
    return [{"path": mount["mountPath"], "shared": mount["name"] in claims}
            for mount in container.get("volumeMounts", [])]


def pod(template, host, names, controller, secret):
    spec = template["spec"]
    container = spec["containers"][0]
    environment = {**variables_of(container, secret), **controller}
    words = container["command"] + container.get("args", [])
    return {
        "host": host,
        "names": names,
        "environment": environment,
        "command": [expand(word, environment) for word in words],
        "probe": container["livenessProbe"]["exec"]["command"],
        "grace": spec["terminationGracePeriodSeconds"],
        "mounts": mounts_of(spec, container),
    }


def pods_of_job(name, spec, subdomain, secret):
    """The pods of an indexed job."""
    for index in range(spec["completions"]):
        host = f"{name}-{index}"
        yield pod(spec["template"], host, [f"{host}.{subdomain}"], {"JOB_COMPLETION_INDEX": str(index)}, secret)


def pods_of_job_set(name, spec, secret):
    subdomain = spec.get("network", {}).get("subdomain", name)
    for job in spec["replicatedJobs"]:
        for index in range(job.get("replicas", 1)):
            yield from pods_of_job(f"{name}-{job['name']}-{index}", job["template"]["spec"], subdomain, secret)


def pods_of_pytorch_job(name, spec, secret):
    replicas = spec["pytorchReplicaSpecs"]
    total = sum(replica["replicas"] for replica in replicas.values())
    container = replicas["Master"]["template"]["spec"]["containers"][0]
    assert container["name"] == "pytorch"
    port = str(next(p["containerPort"] for p in container["ports"] if p["name"] == "pytorchjob-port"))
    master = f"{name}-master-0"
    rank = 0
    for kind in ("Master", "Worker"):
        for index in range(replicas[kind]["replicas"]):
            controller = {
                "PYTHONUNBUFFERED": "1",
                "MASTER_PORT": port, "PET_MASTER_PORT": port, "MASTER_ADDR": master, "PET_MASTER_ADDR": master,
                "WORLD_SIZE": str(total), "RANK": str(rank), "PET_NODE_RANK": str(rank),
                "PET_NPROC_PER_NODE": "auto", "PET_NNODES": str(total),
            }
            host = f"{name}-{kind.lower()}-{index}"
            yield pod(replicas[kind]["template"], host, [host], controller, secret)
            rank += 1


def main(manifest, secret):
    with open(manifest, encoding="utf-8") as file:
        documents = list(yaml.safe_load_all(file))
    job = documents[-1]
    name, spec = job["metadata"]["name"], job["spec"]
    if job["kind"] == "Job":
        service = documents[0]
        assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
        assert service["spec"]["selector"] == {"job-name": name}
        assert service["metadata"]["name"] == spec["template"]["spec"]["subdomain"]
        pods = pods_of_job(name, spec, service["metadata"]["name"], secret)
    elif job["kind"] == "JobSet":
        pods = pods_of_job_set(name, spec, secret)
    else:
        pods = pods_of_pytorch_job(name, spec, secret)
    print(json.dumps(list(pods)))


main(*sys.argv[1:])
