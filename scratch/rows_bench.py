import resource, subprocess, sys, statistics
bin='/work/main/build/bin'
def cpu(replicas, comm, steps):
    before=resource.getrusage(resource.RUSAGE_CHILDREN)
    r=subprocess.run([bin+'/tutti','run','-n','2','--min','1','--',bin+'/bench_embedding','clicks','--threads','1','--lanes','2','--steps',str(steps),'--replicas',str(replicas),'--comm',comm,'--logdir='],capture_output=True,text=True)
    if r.returncode: print(r.stderr[-2000:]); sys.exit(1)
    after=resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime+after.ru_stime-before.ru_utime-before.ru_stime
def per_step(replicas, comm, lo=5, hi=int(sys.argv[2])):
    return (cpu(replicas,comm,hi)-cpu(replicas,comm,lo))/(hi-lo)/2*1000
comms=sys.argv[3:] or ['shm']
for comm in comms:
    a=[];b=[]
    for i in range(int(sys.argv[1])):
        a.append(per_step(0,comm)); b.append(per_step(1,comm))
        print(comm, 'replicas 0: %.2f   1: %.2f'%(a[-1],b[-1]),flush=True)
    print(comm,'median ms a step of a worker: 0: %.2f 1: %.2f ratio %.3f'%(statistics.median(a),statistics.median(b),statistics.median(b)/statistics.median(a)),flush=True)
